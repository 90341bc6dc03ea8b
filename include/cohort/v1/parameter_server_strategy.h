// SPDX-License-Identifier: Apache-2.0
// Variables live on parameter servers, and each worker runs the program by itself, without a
// coordinator (tf.compat.v1.distribute.experimental.ParameterServerStrategy).
//
//   // The same program in each task. `cohort launch --v1` runs `cohort server` as each ps.
//   const auto resolver = cohort::ClusterResolver::from_environment();
//   if (resolver->task_type() == "ps") return cohort::Server(*resolver).join();
//   cohort::v1::ParameterServerStrategy strategy;
//   auto model = strategy.replicate([] { return torch::nn::Linear(10, 1); });
//   const cohort::Adam adam(model.parameters());
//   const cohort::Variable step = strategy.global_step();
//   while (step.read().item<std::int64_t>() < 1000) {
//     strategy.run([&] {
//       adam.minimize(model->forward(x).pow(2).mean());
//       step.assign_add(1);
//     });
//   }
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cohort/cluster/cluster_options.h"
#include "cohort/cluster/cluster_resolver.h"
#include "cohort/core/export.h"
#include "cohort/strategy/parameter_server_strategy.h"
#include "cohort/strategy/strategy.h"
#include "cohort/strategy/synchronous_strategy.h"
#include "cohort/variable/variable.h"

namespace cohort::detail::v1 {
class Job;
struct TaskRole;
}  // namespace cohort::detail::v1

namespace cohort::v1 {

struct StrategyOptions {
  // `timeout`: how long a worker waits for the servers, for the chief, and for a variable that the
  // chief makes. `data_timeout`: how long a read or an update waits, also for a server that starts
  // again and for the chief that restores it.
  ClusterOptions cluster = {};
  // The devices of this task's replicas, such as "CPU:0"; empty: the GPUs that the resolver tells
  // (those of this process with TF_CONFIG), or else CPU:0.
  std::vector<std::string> devices = {};
  // Divides variables into shards of rows; empty: none is divided.
  Partitioner partitioner = {};
  // For the chief: begins again if the servers have variables already, which it otherwise goes on
  // with.
  bool begins_new_job = false;
};

// Which tasks a task talks to (tf's session settings).
struct COHORT_API SessionSettings {
  // "/job:worker/task:0" and "/job:ps"; empty: all.
  std::vector<std::string> device_filters = {};
  bool isolates_session_state = false;  // whether no other task sees its variables
};

// The replicas of one worker train synchronously on its devices, as those of a
// CentralStorageStrategy: their gradients are added before an update. Updates are made on the
// servers, in no order with those of other workers. A run() begins with the current values, which
// all of its replicas use; after an update, or an assignment, in a run it has the values that the
// servers then have.
//
// The task chief:0, or worker:0 if there is none, is the chief. Only it makes variables, restores
// and saves; the others wait for it, and find variables by their names. They train from its first
// run() on, or from let_others_train() on. Variables are placed round robin over the servers in the
// order in which they are made, each shard with a turn; one that is made with
// VariableOptions::colocate_with, or in a ColocationScope, is beside the other and has no turn. A
// device scope of tf has no counterpart: code runs on the device of its replica, and updates where
// the variable is.
//
// A task that starts again finds the variables and goes on; so does the chief. An update is applied
// at most once, also if it was sent again because a connection broke. When a server has lost its
// variables, the chief restores all servers (restore_after_loss()), and all calls wait meanwhile.
//
// A variable that a run writes in place, such as a buffer of batch norm, is assigned at its end, or
// before the next update of it: the last writer wins; of whole numbers the difference is added. A
// trainable variable that is written in place throws invalid_argument, so LibTorch's optimizers
// cannot be used; so does, with several replicas, any variable but a buffer of replicate().
//
// Without a cluster, and in an evaluator, which works with checkpoints, variables are in this
// process. barrier() and broadcast() throw unimplemented, since workers do not wait for each other.
//
// Thread-safe as CentralStorageStrategy is.
class COHORT_API ParameterServerStrategy final : public SynchronousStrategy {
 public:
  // The cluster of ClusterResolver::from_environment(). Throws invalid_argument if there is none,
  // and what that function throws.
  ParameterServerStrategy();
  // An empty cluster: this process trains alone. Throws invalid_argument for a cluster without ps,
  // for a task without type or index, for one that is not in the cluster or is a ps, for an unknown
  // job, and for several chiefs or evaluators. Connects to nothing.
  explicit ParameterServerStrategy(const ClusterResolver& resolver, StrategyOptions options = {});
  ~ParameterServerStrategy() override;

  // "/job:worker/task:1/CPU:0" for worker:1.
  std::vector<std::string> worker_devices() const override;
  // "/job:ps/task:0/CPU:0" and so on, also in an evaluator; without a cluster, "CPU:0".
  std::vector<std::string> parameter_devices() const override;
  // The cluster and the task as they were when the strategy was made.
  const ClusterResolver* cluster_resolver() const override { return resolver_.get(); }
  bool is_chief() const;
  SessionSettings session_settings() const;
  // The number of steps of all workers (tf.compat.v1.train.get_or_create_global_step()): an int64
  // variable, which the program adds to, with aggregation only_first_replica: each worker counts a
  // step once, whatever the number of its replicas. Always the same variable.
  Variable global_step();
  // In the chief: lets the others train, who wait until it has made and restored what it wants to.
  // Its first run() does so, too. Does nothing in others.
  void let_others_train();
  // In the chief: after a server has lost its variables, all variables are made again with their
  // initial values, and then `restore` is called, on a thread of the strategy: it restores what was
  // saved last, and returns its step, or nullopt if nothing was saved. It must not call run().
  // Without it, the variables keep their initial values. The log says to which step training falls
  // back. If it throws, all later calls throw the same. Since the program's thread may save
  // meanwhile, it needs a Checkpoint of its own, and may use nothing that ends before the strategy.
  // Called at once if that has happened already, and others do not train yet. A save after a loss
  // throws aborted until a step, or a read, has seen the values that were restored.
  void restore_after_loss(std::function<std::optional<std::int64_t>()> restore);

 protected:
  internal::StrategyTraits traits() const override;

 private:
  ParameterServerStrategy(std::unique_ptr<const detail::v1::TaskRole> role,
                          const ClusterResolver& resolver, StrategyOptions options);

  std::unique_ptr<const ClusterResolver> resolver_;
  std::unique_ptr<const detail::v1::TaskRole> role_;
  std::shared_ptr<detail::v1::Job> job_;  // nullptr: variables are in this process
  struct GlobalStep;
  std::unique_ptr<GlobalStep> global_step_;
};

}  // namespace cohort::v1
