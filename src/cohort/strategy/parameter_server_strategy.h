// SPDX-License-Identifier: Apache-2.0
// Variables on parameter servers, steps on workers, scheduled by a ClusterCoordinator
// (tf.distribute.ParameterServerStrategy, version 2).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "cohort/cluster/cluster_resolver.h"
#include "cohort/core/export.h"
#include "cohort/strategy/cluster_connection.h"
#include "cohort/strategy/coordinator_place.h"
#include "cohort/strategy/replicated.h"
#include "cohort/strategy/strategy.h"
#include "cohort/variable/initializer.h"
#include "cohort/variable/variable.h"
#include "cohort/variable/variable_table.h"

namespace cohort {

struct ParameterServerOptions {
  ClusterOptions cluster = {};
};
struct ReplicateOptions {
  std::string name = "model";  // "<name>/<path in the module>" are the variables' names
};
struct VariableOptions {
  bool is_trainable = true;
  // Live where this one lives; does not count in the round robin.
  std::optional<Variable> colocate_with = {};
};

// Thread-safe. The coordinator made for it shares its state and may outlive it.
class COHORT_API ParameterServerStrategy final : public Strategy {
 public:
  // Only validates (spec: jobs chief, worker, ps, evaluator; at least one ps and one worker):
  // connects at first need.
  explicit ParameterServerStrategy(const ClusterResolver& resolver,
                                   ParameterServerOptions options = {});
  ~ParameterServerStrategy() override;

  std::string_view name() const override;
  int num_replicas_in_sync() const override { return 1; }

  // A variable on the next parameter server, round robin, which advances once for each variable
  // made. Connects and sends, under ClusterOptions' deadlines; blocks until the value is there.
  // already_exists for a name that is taken; unavailable naming the servers that are missing or
  // were restarted; failed_precondition inside a scheduled function, and inside the scope of
  // another strategy or of the default one ("mixing strategies").
  Variable variable(std::string name, const at::Tensor& initial_value,
                    VariableOptions options = {});
  // The same with initial values made out of the strategy's seed and the name; also errors as
  // Initializer::make()'s.
  Variable variable(std::string name, const TensorSpec& spec, const Initializer& initializer,
                    VariableOptions options = {});

  // Runs factory once, under the strategy's seed, and puts the module's parameters and buffers on
  // the servers. The module is used through the handle inside steps; train() and eval() there hold
  // for that step, and each begins in the mode in which the factory has left the module. factory:
  // () -> a torch::nn module, or a holder of one. A tensor that it registers under several names
  // (tied weights) is one variable with the first name; a weight in channels_last order becomes
  // row-major. Blocks, and throws, as variable() does; already_exists also for two tensors that
  // share memory (set_data): register one under both names. Then none of the variables is made.
  template <class Factory>
  auto replicate(Factory factory, ReplicateOptions options = {}) {
    using M = std::invoke_result_t<Factory&>;
    const auto seeded = [&] {
      const auto guard = internal::seed_default_generator(seed());
      return factory();
    };
    auto shared = std::make_shared<typename Replicated<M>::Shared>(
        typename Replicated<M>::Shared{seeded(), factory, {}, {}, {}});
    std::vector<internal::NamedTensor> tensors =
        internal::tensors_of(internal::module_of(shared->module));
    internal::make_row_major(tensors);
    shared->variables = create_variables(options.name, tensors);
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      if (tensors[i].is_trainable) shared->parameters.push_back(shared->variables[i]);
    }
    shared->home = home();
    using Shared = typename Replicated<M>::Shared;
    const std::weak_ptr<Shared> weak = shared;
    keep_modes({[weak] {
                  const auto alive = weak.lock();
                  return alive ? internal::modes_of(internal::module_of(alive->module))
                               : std::vector<bool>();
                },
                [weak](const std::vector<bool>& modes) {
                  if (const auto alive = weak.lock())
                    internal::set_modes(internal::module_of(alive->module), modes);
                }});
    return Replicated<M>(std::move(shared));
  }

  // A value that is not distributed is its own reduction, whatever the operation.
  Nest reduce(const Nest& value) const;
  using Strategy::reduce;

  // "/job:ps/task:0", …
  std::vector<std::string> parameter_devices() const override;
  // On whichever worker a step runs.
  std::vector<std::string> worker_devices() const override { return {"CPU:0"}; }

  // For the coordinator: the shared state of strategy and coordinator.
  ClusterConnection& connection();
  // Where the coordinator answers `cohort status`: the chief's address in the cluster, where the
  // resolver says that this is its task; else empty.
  const std::string& own_address() const;
  // Keeps connection() alive.
  std::shared_ptr<void> shared_state() const;
  const VariableTable& variables() const;
  CoordinatorPlace& coordinator_place();
  // Who runs the user's code with the stand-ins, or changes them, holds this. It comes before every
  // other lock, and the same thread may take it again.
  std::unique_lock<std::recursive_mutex> lock_stand_ins() const;
  // The modes of all replicated modules, as train() and eval() have left them, and setting them.
  // With lock_stand_ins().
  std::vector<std::vector<bool>> module_modes() const;
  void set_module_modes(const std::vector<std::vector<bool>>& modes) const;
  // Pulls every variable into its stand-in, and gives the values in the order of variables().
  std::vector<at::Tensor> load_stand_ins() const;

 protected:
  void run_replicas(const std::function<void(ReplicaContext&)>& body) override;
  // unimplemented: its input is ClusterCoordinator::create_per_worker_dataset().
  std::shared_ptr<const InputHost> input_host() override;

 private:
  class Home;
  std::uint64_t seed() const;
  std::shared_ptr<internal::ModuleHome> home() const;
  void keep_modes(internal::ModuleModes modes);
  std::vector<Variable> create_variables(const std::string& name,
                                         const std::vector<internal::NamedTensor>& tensors);
  std::shared_ptr<Home> home_;
};

}  // namespace cohort
