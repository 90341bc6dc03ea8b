// SPDX-License-Identifier: Apache-2.0
// The health of a task in the text format of Prometheus (version 0.0.4, docs/formats/metrics.md).
#pragma once

#include <string>

#include "cohort/cluster/task_health.h"
#include "cohort/core/export.h"

namespace cohort::rpc::internal {

inline constexpr const char* kMetricsType = "text/plain; version=0.0.4; charset=utf-8";
// `task` is the label of each sample: "ps:0".
COHORT_API std::string metrics_text(const TaskHealth& health, const std::string& task);

}  // namespace cohort::rpc::internal
