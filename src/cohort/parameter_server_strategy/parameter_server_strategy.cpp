// SPDX-License-Identifier: Apache-2.0
#include "cohort/strategy/parameter_server_strategy.h"

#include <ATen/core/TensorBody.h>

#include <utility>

#include "cohort/core/blas.h"
#include "cohort/function/trace.h"
#include "cohort/input/input_host.h"
#include "cohort/parameter_server_strategy/parameter_server_home.h"
#include "cohort/parameter_server_strategy/server_variables.h"
#include "cohort/strategy/contexts.h"
#include "cohort/variable/eager_step.h"
#include "cohort/variable/read_cache.h"

namespace cohort {
ParameterServerStrategy::ParameterServerStrategy(const ClusterResolver& resolver,
                                                 ParameterServerOptions options)
    : home_(std::make_shared<detail::ParameterServerHome>(this, resolver, std::move(options))),
      variables_(std::make_shared<detail::ServerVariables>(*this, home_)) {
  warn_of_slow_blas();
}

ParameterServerStrategy::~ParameterServerStrategy() {
  if (home_) home_->forget_owner();
}

const ClusterResolver* ParameterServerStrategy::cluster_resolver() const {
  return &home_->resolver();
}

std::vector<std::string> ParameterServerStrategy::parameter_devices() const {
  std::vector<std::string> devices;
  for (std::uint32_t i = 0; i < home_->connection().num_ps(); ++i)
    devices.push_back("/job:ps/task:" + std::to_string(i));
  return devices;
}

std::string_view ParameterServerStrategy::name() const { return "parameter_server"; }

std::shared_ptr<const input::InputHost> ParameterServerStrategy::input_host() {
  internal::throw_error(ErrorCode::unimplemented,
                        "[strategy.input] expected a synchronous strategy, got 'parameter_server', "
                        "whose workers read their own input: use "
                        "ClusterCoordinator::create_per_worker_dataset() for a dataset, and pass "
                        "other values to ClusterCoordinator::schedule() as arguments");
}

DatasetFunction ParameterServerStrategy::distribute_datasets_from_function(
    DatasetFunction fn, const InputOptions& options) const {
  COHORT_CHECK(
      fn != nullptr, ErrorCode::invalid_argument,
      "[strategy.distribute_datasets_from_function] expected a function, got an empty one");
  options.validate();
  return fn;
}

void ParameterServerStrategy::run_replicas(const std::function<void(ReplicaContext&)>& body) {
  if (function::Trace::current() != nullptr || EagerStep::current() != nullptr)
    return internal::in_replica_context(*this, 0, body);
  home_->warn_of_local_run();
  // Without the lock, a trace in another thread could change the stand-ins.
  const auto stand_ins = home_->lock_stand_ins();
  VariableTraffic traffic;
  EagerStep step(traffic, EagerStep::Kind::run);
  internal::in_replica_context(*this, 0, [&](ReplicaContext& context) {
    home_->run_with_stand_ins(step, "strategy.run", [&] { body(context); });
  });
}

CacheVariableReadsScope::CacheVariableReadsScope()
    : cache_(std::make_unique<variable::ReadCache>()) {}
CacheVariableReadsScope::~CacheVariableReadsScope() = default;

}  // namespace cohort
