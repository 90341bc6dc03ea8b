// SPDX-License-Identifier: Apache-2.0
// Variables live on parameter servers; steps run on workers, scheduled by a ClusterCoordinator
// (tf.distribute.ParameterServerStrategy, version 2). Training is asynchronous, as described in
// coordinator/cluster_coordinator.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cohort/cluster/cluster_options.h"
#include "cohort/cluster/cluster_resolver.h"
#include "cohort/core/export.h"
#include "cohort/strategy/partitioner.h"
#include "cohort/strategy/replicated.h"
#include "cohort/strategy/strategy.h"
#include "cohort/variable/variable.h"

namespace cohort {

namespace detail {
class ParameterServerHome;
}

struct ParameterServerOptions {
  ClusterOptions cluster = {};
  // Divides the rows of variables over the servers; without one, each variable is whole on one
  // server. Not asked for scalars, for variables with VariableOptions::colocate_with, and for the
  // buffers of modules, which stay whole.
  Partitioner partitioner = {};
};

// variable() creates a variable on the next parameter server, in turn, or each of its shards;
// replicate() puts a module's parameters and buffers there. A sharded variable is one Variable: its
// numbers are those of a whole one. An assignment to it is not atomic over the servers, as in tf.
// Both connect, and block until the servers have the values, under the deadlines of ClusterOptions.
// They throw already_exists if a name is taken; unavailable, naming the servers, if some are
// missing or were restarted; failed_precondition inside a scheduled function; invalid_argument if
// the partitioner returns no list of one number for each axis, a first number below 1, or another
// one that is not 1. A server computes the values of an Initializer itself.
//
// Thread-safe. Must outlive its ClusterCoordinator and that one's epochs.
class COHORT_API ParameterServerStrategy final : public Strategy {
 public:
  // Only validates the cluster spec: the jobs are chief, worker, ps and evaluator, with at least
  // one ps and one worker. The first call that needs a server connects.
  explicit ParameterServerStrategy(const ClusterResolver& resolver,
                                   ParameterServerOptions options = {});
  ~ParameterServerStrategy() override;

  std::string_view name() const override;
  int num_replicas_in_sync() const override { return 1; }

  // "/job:ps/task:0", …
  std::vector<std::string> parameter_devices() const override;
  // The device of the worker that runs a step.
  std::vector<std::string> worker_devices() const override { return {"CPU:0"}; }

  // For the coordinator: the state that the strategy, the coordinator and all variables share. It
  // lives as long as one of them. The type is not public.
  const std::shared_ptr<detail::ParameterServerHome>& home() const { return home_; }

 protected:
  internal::StrategyVariables* variables() const override { return variables_.get(); }
  void run_replicas(const std::function<void(ReplicaContext&)>& body) override;
  // Throws unimplemented: the workers read their own input. Use
  // ClusterCoordinator::create_per_worker_dataset() for a dataset, and pass other values to
  // schedule() as arguments.
  std::shared_ptr<const input::InputHost> input_host() override;

 private:
  std::shared_ptr<detail::ParameterServerHome> home_;
  std::shared_ptr<internal::StrategyVariables> variables_;  // shared: not complete here
};

}  // namespace cohort
