// SPDX-License-Identifier: Apache-2.0
// Variables live on parameter servers; steps run on workers, scheduled by a ClusterCoordinator
// (tf.distribute.ParameterServerStrategy, version 2). Training is asynchronous, as described in
// coordinator/cluster_coordinator.h.
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
  // Places the variable on the same server as this one; the next variable's server stays the same.
  std::optional<Variable> colocate_with = {};
};

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

  // Creates a variable on the next parameter server, in turn. Connects, and blocks until the server
  // has the value, under the deadlines of ClusterOptions. Throws already_exists if the name is
  // taken; unavailable, naming the servers, if some are missing or were restarted;
  // failed_precondition inside a scheduled function, and inside the scope of a different strategy
  // or of the default one ("mixing strategies").
  Variable variable(std::string name, const at::Tensor& initial_value,
                    VariableOptions options = {});
  // The same; the server computes the initial value from the strategy's seed and the name. Also
  // throws the errors of Initializer::make().
  Variable variable(std::string name, const TensorSpec& spec, const Initializer& initializer,
                    VariableOptions options = {});

  // Runs factory once, with LibTorch's generator seeded by the strategy's seed, and puts the
  // module's parameters and buffers on the servers. factory returns a torch::nn module or a holder
  // of one. A c10::Error that it throws becomes an Error; other exceptions pass unchanged.
  //
  // Steps use the module through the returned handle. Each step begins in the mode in which factory
  // left the module; train() and eval() inside a step hold until its end. A tensor that the module
  // registers under several names (tied weights) becomes one variable with the first name; a weight
  // in channels_last order becomes row-major. Blocks and throws as variable() does; also throws
  // already_exists if two tensors share memory (set_data): register one tensor under both names. If
  // it throws, no variable is created.
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

  // Returns `value`: with one replica there is nothing to reduce.
  Nest reduce(const Nest& value) const;
  using Strategy::reduce;

  // "/job:ps/task:0", …
  std::vector<std::string> parameter_devices() const override;
  // The device of the worker that runs a step.
  std::vector<std::string> worker_devices() const override { return {"CPU:0"}; }

  // For the coordinator: the state that the strategy, the coordinator and all variables share. It
  // lives as long as one of them. The type is not public.
  const std::shared_ptr<detail::ParameterServerHome>& home() const { return home_; }

 protected:
  void run_replicas(const std::function<void(ReplicaContext&)>& body) override;
  // Throws unimplemented; use ClusterCoordinator::create_per_worker_dataset() for input.
  std::shared_ptr<const input::InputHost> input_host() override;

 private:
  std::uint64_t seed() const;
  std::shared_ptr<internal::ModuleHome> module_home() const;
  void keep_modes(internal::ModuleModes modes);
  std::vector<Variable> create_variables(const std::string& name,
                                         const std::vector<internal::NamedTensor>& tensors);
  std::shared_ptr<detail::ParameterServerHome> home_;
};

}  // namespace cohort
