// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "cohort/cluster/launchers.h"
#include "cohort/cluster/resolvers/ranked_jobs.h"
#include "cohort/cluster/resolvers/resolving.h"
#include "cohort/core/error.h"

namespace cohort {

LauncherResolver::LauncherResolver(LauncherOptions options, const char* launcher, std::int64_t size)
    : options_(std::move(options)) {
  COHORT_CHECK(options_.timeout > Duration::zero(), ErrorCode::invalid_argument, "[cluster.",
               launcher, "] expected a timeout above 0, got ", options_.timeout.count(), " ns");
  if (options_.jobs.empty()) options_.jobs = {{"worker", size}};
  internal::check_jobs(options_.jobs, size,
                       {.launcher = launcher,
                        .option = "LauncherOptions::jobs",
                        .remedy = "change the jobs, or the number of processes"});
}

ClusterSpec LauncherResolver::cluster_spec() const {
  return internal::cluster_of(options_.jobs, addresses());
}

std::optional<std::string> LauncherResolver::task_type() const {
  return internal::task_of_rank(options_.jobs, rank()).job;
}

std::optional<std::int64_t> LauncherResolver::task_id() const {
  return internal::task_of_rank(options_.jobs, rank()).index;
}

std::string LauncherResolver::master(const TaskQuery& query) const {
  return internal::master_of_task(*this, query);
}

std::map<std::string, int> LauncherResolver::num_accelerators(const TaskQuery&) const {
  return internal::count_accelerators(internal::local_devices(), {});
}

}  // namespace cohort
