// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "cohort/cluster/resolvers.h"
#include "cohort/cluster/resolvers/resolving.h"
#include "cohort/core/error.h"

namespace cohort {
namespace {

bool has_consecutive_indices(const ClusterSpec::Tasks& tasks) {
  return !tasks.empty() && tasks.begin()->first == 0 &&
         tasks.rbegin()->first == static_cast<std::int64_t>(tasks.size()) - 1;
}

// The tasks of one job in each resolver that has it.
ClusterSpec::Tasks merged_tasks(const std::string& job,
                                const std::vector<ClusterSpec::Tasks>& parts) {
  const bool are_lists = std::all_of(parts.begin(), parts.end(), has_consecutive_indices);
  ClusterSpec::Tasks merged;
  for (const ClusterSpec::Tasks& part : parts) {
    const auto begin = are_lists ? static_cast<std::int64_t>(merged.size()) : 0;
    for (const auto& [index, address] : part) {
      const bool is_new = merged.emplace(begin + index, address).second;
      COHORT_CHECK(is_new, ErrorCode::not_found, "[cluster.union] expected each task of job '", job,
                   "' in one resolver, got index ", index,
                   " in two; give their tasks other indices, or lists, which are put together");
    }
  }
  return merged;
}

bool is_set(const std::optional<std::string>& text) { return !text.value_or("").empty(); }

}  // namespace

UnionResolver::UnionResolver(std::vector<std::shared_ptr<const ClusterResolver>> resolvers)
    : UnionResolver(std::move(resolvers), Options()) {}

UnionResolver::UnionResolver(std::vector<std::shared_ptr<const ClusterResolver>> resolvers,
                             Options options)
    : resolvers_(std::move(resolvers)), options_(std::move(options)) {
  COHORT_CHECK(!resolvers_.empty(), ErrorCode::invalid_argument,
               "[cluster.union] expected at least one resolver, got none");
  const auto null = std::find(resolvers_.begin(), resolvers_.end(), nullptr);
  COHORT_CHECK(null == resolvers_.end(), ErrorCode::invalid_argument,
               "[cluster.union] expected resolvers, got nullptr at position ",
               null - resolvers_.begin());
}

ClusterSpec UnionResolver::cluster_spec() const {
  std::map<std::string, std::vector<ClusterSpec::Tasks>> parts;
  for (const auto& resolver : resolvers_) {
    const ClusterSpec spec = resolver->cluster_spec();
    for (const auto& [job, tasks] : spec.tasks()) parts[job].push_back(tasks);
  }
  std::map<std::string, ClusterSpec::Tasks> jobs;
  for (const auto& [job, tasks] : parts) jobs.emplace(job, merged_tasks(job, tasks));
  return ClusterSpec::from_tasks(std::move(jobs));
}

std::optional<std::string> UnionResolver::task_type() const {
  return is_set(options_.task_type) ? options_.task_type : first().task_type();
}

std::optional<std::int64_t> UnionResolver::task_id() const {
  return options_.task_id.value_or(0) != 0 ? options_.task_id : first().task_id();
}

std::optional<std::string> UnionResolver::rpc_layer() const {
  return is_set(options_.rpc_layer) ? options_.rpc_layer : first().rpc_layer();
}

std::optional<std::string> UnionResolver::environment() const {
  return is_set(options_.environment) ? options_.environment : first().environment();
}

std::string UnionResolver::master(const TaskQuery& query) const {
  const bool is_task = query.task_type && query.task_id;
  if (!is_task) return first().master({.rpc_layer = query.rpc_layer});
  // As in tf, the layers of the resolvers do not count here.
  return internal::master_url(cluster_spec().task_address(*query.task_type, *query.task_id),
                              is_set(query.rpc_layer) ? query.rpc_layer : options_.rpc_layer);
}

std::map<std::string, int> UnionResolver::num_accelerators(const TaskQuery& query) const {
  if (options_.num_accelerators) return *options_.num_accelerators;
  return first().num_accelerators(query);
}

void UnionResolver::validate() const {
  for (const auto& resolver : resolvers_) resolver->validate();
}

}  // namespace cohort
