// SPDX-License-Identifier: Apache-2.0
// Which tasks of a cluster train together, and what each of them does besides
// (tensorflow.python.distribute.multi_worker_util).
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "cohort/cluster/cluster_resolver.h"
#include "cohort/core/export.h"

namespace cohort::cluster {

// The number of tasks of a job; 0 if the cluster has no such job.
COHORT_API std::int64_t num_tasks_of(const ClusterSpec& spec, const std::string& job);

// These throw the errors of validate_cluster() for the task `type`:`index`.
//
// The number of the task among those that train: the chief is 0, workers follow it. An evaluator
// counts in its own job. Throws invalid_argument for other jobs.
COHORT_API std::int64_t id_in_cluster(const ClusterSpec& spec, const std::string& type,
                                      std::int64_t index);
// How many tasks train, the chief among them; for an evaluator, 1, as it works alone. Throws
// invalid_argument for other jobs.
COHORT_API std::int64_t worker_count(const ClusterSpec& spec, const std::string& type);
// Whether the task saves checkpoints and writes summaries for all: the chief or, without one,
// worker 0. An evaluator is its own chief.
COHORT_API bool is_chief(const ClusterSpec& spec, const std::string& type, std::int64_t index);
// The task at which the others meet for collective operations; nullopt for an evaluator and for an
// empty cluster.
COHORT_API std::optional<TaskId> collective_leader(const ClusterSpec& spec, const std::string& type,
                                                   std::int64_t index);

}  // namespace cohort::cluster
