// SPDX-License-Identifier: Apache-2.0
#include "cohort/v1/parameter_server_strategy.h"

#include <ATen/ops/zeros.h>

#include <utility>

#include "cohort/cluster/resolver_answers.h"
#include "cohort/core/error.h"
#include "cohort/core/mutex.h"
#include "cohort/input/input_host.h"
#include "cohort/v1/job.h"
#include "cohort/v1/server_values.h"
#include "cohort/v1/task_role.h"

namespace cohort::v1 {
namespace {

using detail::v1::Job;
using detail::v1::TaskRole;

// It says what the resolver says now.
std::vector<std::string> devices_of_task(const ClusterResolver& resolver,
                                         const StrategyOptions& options) {
  if (!options.devices.empty()) return options.devices;
  const std::map<std::string, int> accelerators = resolver.num_accelerators();
  const auto gpus = accelerators.find("GPU");
  std::vector<std::string> devices;
  for (int i = 0; gpus != accelerators.end() && i < gpus->second; ++i)
    devices.push_back("GPU:" + std::to_string(i));
  if (devices.empty()) devices.emplace_back("CPU:0");
  return devices;
}

const ClusterResolver& with_cluster(const ClusterResolver& resolver) {
  COHORT_CHECK(bool(resolver.cluster_spec()), ErrorCode::invalid_argument,
               "[v1.construct] expected a cluster in TF_CONFIG, got none; set {\"cluster\": "
               "{\"worker\": [\"host:port\", …], \"ps\": [\"host:port\", …]}, \"task\": {\"type\": "
               "\"worker\", \"index\": 0}}, start the program with `cohort launch --v1`, or with "
               "srun, mpirun or torchrun and COHORT_TASKS, or give the strategy a resolver");
  return resolver;
}

input::InputHost host_of(const TaskRole& role) {
  return {.strategy = "v1_parameter_server",
          .lone_workers = role.has_servers() ? role.num_workers() : 0,
          .lone_worker = role.has_servers() ? role.worker() : 0};
}

}  // namespace

struct ParameterServerStrategy::GlobalStep {
  Mutex mutex;
  std::optional<Variable> variable COHORT_GUARDED_BY(mutex);
};

ParameterServerStrategy::ParameterServerStrategy()
    : ParameterServerStrategy(with_cluster(*ClusterResolver::from_environment())) {}

ParameterServerStrategy::ParameterServerStrategy(const ClusterResolver& resolver,
                                                 StrategyOptions options)
    : ParameterServerStrategy(std::make_unique<const TaskRole>(TaskRole::of(resolver)), resolver,
                              std::move(options)) {}

// Replicas on several devices share one value, as those of a CentralStorageStrategy do.
ParameterServerStrategy::ParameterServerStrategy(std::unique_ptr<const TaskRole> role,
                                                 const ClusterResolver& resolver,
                                                 StrategyOptions options)
    : SynchronousStrategy(host_of(*role), devices_of_task(resolver, options),
                          kind_of_central_values(devices_of_task(resolver, options).size())),
      resolver_(cluster::answers_of(resolver)),
      role_(std::move(role)),
      global_step_(std::make_unique<GlobalStep>()) {
  if (!role_->has_servers()) return;
  job_ = std::make_shared<Job>(
      *role_, detail::v1::JobOptions{options.cluster, options.partitioner, options.begins_new_job});
  keep_values_in(std::make_shared<detail::v1::ServerValues>(job_));
}

ParameterServerStrategy::~ParameterServerStrategy() {
  if (job_) job_->end();
}

std::vector<std::string> ParameterServerStrategy::worker_devices() const {
  std::vector<std::string> names = SynchronousStrategy::worker_devices();
  if (role_->is_alone()) return names;
  for (std::string& name : names) name.insert(0, role_->device_prefix() + "/");
  return names;
}

std::vector<std::string> ParameterServerStrategy::parameter_devices() const {
  std::vector<std::string> names;
  for (std::int64_t i = 0; i < role_->num_servers(); ++i)
    names.push_back("/job:ps/task:" + std::to_string(i) + "/CPU:0");
  if (names.empty()) names.emplace_back("CPU:0");
  return names;
}

bool ParameterServerStrategy::is_chief() const { return role_->is_chief(); }

SessionSettings ParameterServerStrategy::session_settings() const {
  if (role_->is_alone()) return {.device_filters = {}, .isolates_session_state = true};
  SessionSettings settings{.device_filters = {role_->device_prefix()}};
  if (role_->has_servers()) settings.device_filters.emplace_back("/job:ps");
  return settings;
}

internal::StrategyTraits ParameterServerStrategy::traits() const {
  return {.is_multi_worker = role_->has_servers(),
          .is_first_worker = role_->is_chief(),
          .is_between_graph = true,
          .is_asynchronous = role_->has_servers()};
}

Variable ParameterServerStrategy::global_step() {
  const Lock lock(global_step_->mutex);
  if (!global_step_->variable) {
    global_step_->variable =
        variable(detail::v1::kGlobalStep, at::zeros({}, at::kLong),
                 {.is_trainable = false, .aggregation = VariableAggregation::only_first_replica});
  }
  return *global_step_->variable;
}

void ParameterServerStrategy::let_others_train() {
  if (job_) job_->let_others_train();
}

void ParameterServerStrategy::restore_after_loss(
    std::function<std::optional<std::int64_t>()> restore) {
  if (job_) job_->restore_with(std::move(restore));
}

}  // namespace cohort::v1
