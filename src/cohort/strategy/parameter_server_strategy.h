// SPDX-License-Identifier: Apache-2.0
// Variables on parameter servers, steps on workers, scheduled by a ClusterCoordinator
// (tf.distribute.ParameterServerStrategy, version 2).
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "cohort/cluster/cluster_options.h"
#include "cohort/cluster/cluster_resolver.h"
#include "cohort/core/error.h"
#include "cohort/core/export.h"
#include "cohort/strategy/replicated.h"
#include "cohort/strategy/strategy.h"
#include "cohort/variable/initializer.h"
#include "cohort/variable/variable.h"

namespace cohort {

namespace detail {
class ParameterServerHome;
}

struct ParameterServerOptions {
  ClusterOptions cluster = {};
};
struct ReplicateOptions {
  std::string name = "model";  // variables are named "<name>/<path in the module>"
};
struct VariableOptions {
  bool is_trainable = true;
  // Places the variable on the same server as this one; the round robin does not advance.
  std::optional<Variable> colocate_with = {};
};

// Thread-safe. The coordinator made for it shares its state and may outlive it.
class COHORT_API ParameterServerStrategy final : public Strategy {
 public:
  // Only validates the cluster spec (jobs chief, worker, ps, evaluator; at least one ps and one
  // worker). The first call that needs a server connects.
  explicit ParameterServerStrategy(const ClusterResolver& resolver,
                                   ParameterServerOptions options = {});
  ~ParameterServerStrategy() override;

  std::string_view name() const override;
  int num_replicas_in_sync() const override { return 1; }

  // Creates a variable on the next parameter server, round robin; the round robin advances once per
  // created variable. Connects, and blocks until the server has the value, under the deadlines of
  // ClusterOptions. Throws already_exists for a name that is taken; unavailable naming the servers
  // that are missing or were restarted; failed_precondition inside a scheduled function, and inside
  // the scope of another strategy or of the default one ("mixing strategies").
  Variable variable(std::string name, const at::Tensor& initial_value,
                    VariableOptions options = {});
  // The same, with an initial value computed from the strategy's seed and the name. Also throws the
  // errors of Initializer::make().
  Variable variable(std::string name, const TensorSpec& spec, const Initializer& initializer,
                    VariableOptions options = {});

  // Runs factory once, with the generator seeded by the strategy's seed, and puts the module's
  // parameters and buffers on the servers. factory: () -> a torch::nn module, or a holder of one.
  // LibTorch's exceptions in it become an Error, any other passes unchanged.
  // Steps use the module through the returned handle. Each step begins in the mode in which factory
  // left the module; train() and eval() inside a step hold until its end. A tensor that the module
  // registers under several names (tied weights) is one variable with the first name; a weight in
  // channels_last order becomes row-major. Blocks and throws as variable() does; already_exists
  // also for two tensors that share memory (set_data): register one tensor under both names. If it
  // throws, no variable is created.
  template <class Factory>
  auto replicate(Factory factory, ReplicateOptions options = {}) {
    using M = std::invoke_result_t<Factory&>;
    const auto seeded = [&] {
      const auto guard = internal::seed_default_generator(seed());
      try {
        return factory();
      } catch (const c10::Error&) {  // its what() would have a page of stack frames
        throw current_error().during("making the module of replicate()");
      }
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
    shared->home = module_home();
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

  // Returns `value`: reducing a value that is not distributed leaves it unchanged.
  Nest reduce(const Nest& value) const;
  using Strategy::reduce;

  // "/job:ps/task:0", …
  std::vector<std::string> parameter_devices() const override;
  // The device of the worker that runs a step.
  std::vector<std::string> worker_devices() const override { return {"CPU:0"}; }

  // For the coordinator: the state that it shares with the strategy, which may outlive both. The
  // type is not public.
  const std::shared_ptr<detail::ParameterServerHome>& home() const { return home_; }

 protected:
  void run_replicas(const std::function<void(ReplicaContext&)>& body) override;
  // Throws unimplemented; use ClusterCoordinator::create_per_worker_dataset() for input.
  std::shared_ptr<const InputHost> input_host() override;

 private:
  std::uint64_t seed() const;
  std::shared_ptr<internal::ModuleHome> module_home() const;
  void keep_modes(internal::ModuleModes modes);
  std::vector<Variable> create_variables(const std::string& name,
                                         const std::vector<internal::NamedTensor>& tensors);
  std::shared_ptr<detail::ParameterServerHome> home_;
};

}  // namespace cohort
