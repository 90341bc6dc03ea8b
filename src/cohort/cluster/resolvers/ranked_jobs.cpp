// SPDX-License-Identifier: Apache-2.0
#include "cohort/cluster/resolvers/ranked_jobs.h"

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>

#include "cohort/cluster/resolvers/integer_text.h"
#include "cohort/cluster/resolvers/resolving.h"
#include "cohort/core/error.h"

namespace cohort::internal {
namespace {

constexpr std::string_view kEvaluator = "evaluator";

}  // namespace

void check_jobs(const TasksByJob& jobs, std::int64_t size, const JobsText& text) {
  std::int64_t sum = 0;
  for (const auto& [job, tasks] : jobs) {
    COHORT_CHECK(tasks >= 0, ErrorCode::invalid_argument, "[cluster.", text.launcher,
                 "] expected 0 tasks or more in job '", job, "', got ", tasks);
    sum += tasks;
  }
  COHORT_CHECK(sum == size, ErrorCode::failed_precondition, "[cluster.", text.launcher,
               "] expected ", size, " tasks in ", text.option, ", got ", sum, "; ", text.remedy);
}

TaskId task_of_rank(const TasksByJob& jobs, std::int64_t rank) {
  for (const auto& [job, tasks] : jobs) {
    if (rank < tasks) return {job, rank};
    rank -= tasks;
  }
  throw_error(ErrorCode::internal, "[cluster.jobs] expected a rank of these jobs, got one above");
}

ClusterSpec cluster_of(const TasksByJob& jobs, const std::vector<std::string>& addresses) {
  std::map<std::string, std::vector<std::string>> tasks;
  for (const auto& [job, count] : jobs) {
    if (job != kEvaluator) tasks[job].reserve(static_cast<std::size_t>(count));
  }
  for (std::size_t rank = 0; rank < addresses.size(); ++rank) {
    const TaskId task = task_of_rank(jobs, static_cast<std::int64_t>(rank));
    if (task.job != kEvaluator) tasks[task.job].push_back(addresses[rank]);
  }
  return ClusterSpec(tasks);
}

TasksByJob jobs_of_environment() {
  TasksByJob jobs;
  const std::string text = environment_text("COHORT_TASKS").value_or("");
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find(',', at), text.size());
    const std::string item = text.substr(at, end - at);
    const std::size_t equals = std::min(item.find('='), item.size());
    const std::optional<std::int64_t> tasks =
        equals < item.size() ? integer_of_text(item.substr(equals + 1)) : std::nullopt;
    const bool is_new =
        tasks && *tasks >= 0 && equals > 0 && jobs.emplace(item.substr(0, equals), *tasks).second;
    COHORT_CHECK(is_new, ErrorCode::invalid_argument,
                 "[cluster.jobs] expected COHORT_TASKS such as 'chief=1,ps=2,worker=4', each job "
                 "once, got ",
                 quote(text), ", which is wrong at ", quote(item));
    at = end + 1;
  }
  return jobs;
}

}  // namespace cohort::internal
