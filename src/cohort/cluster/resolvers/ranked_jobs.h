// SPDX-License-Identifier: Apache-2.0
// Jobs whose tasks are ranks: sorted by name, they get consecutive ones.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "cohort/cluster/cluster_resolver.h"

namespace cohort::internal {

using TasksByJob = std::map<std::string, std::int64_t>;

// For messages.
struct JobsText {
  std::string launcher = {};  // "slurm"
  std::string option = {};    // which has the jobs
  std::string remedy = {};
};

// Throws failed_precondition unless the jobs have `size` tasks together, and invalid_argument for a
// negative number.
void check_jobs(const TasksByJob& jobs, std::int64_t size, const JobsText& text);
// The task of a rank below the sum of the jobs.
TaskId task_of_rank(const TasksByJob& jobs, std::int64_t rank);
// The cluster of these addresses, by rank. An evaluator is no task of the cluster
// (tf.estimator.train_and_evaluate).
ClusterSpec cluster_of(const TasksByJob& jobs, const std::vector<std::string>& addresses);

// The jobs that the variable COHORT_TASKS names, "chief=1,ps=2,worker=4"; none where it is not set
// or empty. Throws invalid_argument for other text.
TasksByJob jobs_of_environment();

}  // namespace cohort::internal
