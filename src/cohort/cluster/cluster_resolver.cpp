// SPDX-License-Identifier: Apache-2.0
#include "cohort/cluster/cluster_resolver.h"

#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <cstdlib>
#include <utility>

#include "cohort/cluster/resolver_answers.h"
#include "cohort/cluster/resolvers/resolving.h"
#include "cohort/core/device.h"
#include "cohort/core/error.h"
#include "cohort/core/log.h"

namespace cohort {

std::optional<TaskId> ClusterResolver::task() const {
  const std::optional<std::string> type = task_type();
  const std::optional<std::int64_t> index = task_id();
  if (!type || !index) return std::nullopt;
  COHORT_CHECK(*index >= 0, ErrorCode::invalid_argument,
               "[cluster.resolver] expected a task index of 0 or more, got ", *index, " for job \"",
               *type, "\"; set task.index in TF_CONFIG, or the resolver's task_id");
  return TaskId{*type, *index};
}

bool ClusterResolver::is_server() const {
  validate();
  const std::optional<std::string> type = task_type();
  if (!type && !cluster_spec().jobs().empty()) {
    log_warn(
        "the cluster names no task for this process (\"task\" in TF_CONFIG, or the resolver's "
        "task_type): it is the coordinator");
  }
  return type == "ps" || type == "worker";
}

namespace internal {

std::string master_url(const std::string& address, const std::optional<std::string>& rpc_layer) {
  return rpc_layer.value_or("").empty() ? address : *rpc_layer + "://" + address;
}

std::string master_of_task(const ClusterResolver& resolver, const TaskQuery& query) {
  const std::optional<std::string> type = query.task_type ? query.task_type : resolver.task_type();
  const std::optional<std::int64_t> index = query.task_id ? query.task_id : resolver.task_id();
  if (!type || !index) return "";
  return master_url(resolver.cluster_spec().task_address(*type, *index),
                    query.rpc_layer ? query.rpc_layer : resolver.rpc_layer());
}

bool is_one_task_at_most(const ClusterSpec& spec) {
  const std::vector<std::string> jobs = spec.jobs();
  return jobs.empty() || (jobs.size() == 1 && spec.job_tasks(jobs[0]).size() == 1);
}

std::optional<std::string> environment_text(const char* name) {
  const char* const text = std::getenv(name);
  if (text == nullptr) return std::nullopt;
  return text;
}

void check_port(std::int64_t port, std::string_view option) {
  COHORT_CHECK(port >= 1 && port <= 65535, ErrorCode::invalid_argument,
               "[cluster.resolver] expected a port from 1 to 65535 for ", option, ", got ", port);
}

std::map<std::string, int> count_accelerators(const std::vector<std::string>& devices,
                                              const TaskQuery& query) {
  const bool is_for_one_task = query.task_type && query.task_id;
  std::map<std::string, int> counts;
  for (const std::string& name : devices) {
    const Device device = Device::parse(name);
    if (device.type == "CPU" || device.type == "XLA_CPU") continue;
    // A device without a task belongs to this process, and counts for every query.
    const bool is_of_task =
        device.is_local() || (device.job == query.task_type && device.task == query.task_id);
    if (!is_for_one_task || is_of_task) ++counts[device.type];
  }
  return counts;
}

std::vector<std::string> local_devices() {
  std::vector<std::string> names;
  const auto* gpus =
      c10::impl::device_guard_impl_registry[static_cast<std::size_t>(c10::DeviceType::CUDA)].load();
  const int count = gpus == nullptr ? 0 : gpus->deviceCount();
  for (int i = 0; i < count; ++i) names.push_back("/device:GPU:" + std::to_string(i));
  return names;
}

}  // namespace internal
}  // namespace cohort

namespace cohort::cluster {

std::unique_ptr<const SimpleResolver> answers_of(const ClusterResolver& resolver) {
  ClusterSpec spec = resolver.cluster_spec();
  SimpleResolver::Options options{.task_type = resolver.task_type(),
                                  .task_id = resolver.task_id(),
                                  .environment = resolver.environment(),
                                  .rpc_layer = resolver.rpc_layer()};
  // Only a task that is in the cluster has an address there. An evaluator need not be, and whoever
  // has no task is a coordinator.
  const bool is_apart = spec && !(options.task_type &&
                                  spec.has_task(*options.task_type, options.task_id.value_or(0)));
  if (!is_apart) {
    options.master = resolver.master();
    options.num_accelerators = resolver.num_accelerators();
  }
  return std::make_unique<const SimpleResolver>(std::move(spec), std::move(options));
}

}  // namespace cohort::cluster
