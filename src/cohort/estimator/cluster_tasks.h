// SPDX-License-Identifier: Apache-2.0
// The tasks of a cluster as tf.estimator.RunConfig sees them. The checks throw invalid_argument,
// naming the key of TF_CONFIG.
#pragma once

#include <cstdint>
#include <string>

#include "cohort/cluster/cluster_resolver.h"

namespace cohort::estimator {

// This process has a task with type and index.
void check_has_task(const ClusterSpec& cluster, const ClusterResolver& resolver);
// The cluster has one task of the job `chief`, which is "chief" or "master", and none of the other.
void check_one_chief(const ClusterSpec& cluster, const std::string& chief);
void check_in_cluster(const ClusterSpec& cluster, const TaskId& task);

std::int64_t tasks_of_job(const ClusterSpec& cluster, const std::string& job);
// RunConfig::global_id_in_cluster(), where the job `chief` comes first.
std::int64_t global_id_of(const ClusterSpec& cluster, const TaskId& task, const std::string& chief);

}  // namespace cohort::estimator
