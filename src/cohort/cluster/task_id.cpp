// SPDX-License-Identifier: Apache-2.0
#include "cohort/cluster/cluster_resolver.h"

#include <charconv>

#include "cohort/core/error.h"

namespace cohort {

TaskId TaskId::parse(std::string_view text) {
  const std::size_t colon = text.rfind(':');
  std::int64_t index = -1;
  if (colon != std::string_view::npos) {
    const char* const end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data() + colon + 1, end, index);
    if (error != std::errc() || stop != end) index = -1;
  }
  const std::string_view job = text.substr(0, colon);
  COHORT_CHECK(index >= 0 && !job.empty() && job.find(':') == std::string_view::npos,
               ErrorCode::invalid_argument,
               "[cluster.task_id] expected a task as JOB:INDEX with an index of 0 or more, got \"",
               text, "\"; write it as \"worker:0\"");
  return {std::string(job), index};
}

}  // namespace cohort
