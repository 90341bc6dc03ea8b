// SPDX-License-Identifier: Apache-2.0
// An ordinary torch::nn module whose parameters and buffers are variables of a strategy. With
// several replicas in one process, each has a copy of its own.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cohort/core/export.h"
#include "cohort/variable/variable.h"

namespace cohort {

namespace internal {

struct NamedTensor {
  std::string name;
  at::Tensor tensor;
  bool is_trainable;
  bool is_buffer = false;
};

// Where a replicated module may be used. Thread-safe.
class COHORT_API ModuleHome {
 public:
  virtual ~ModuleHome() = default;
  // Throws failed_precondition outside a replica and a step; the message suggests snapshot().
  virtual void check_module_use() const = 0;
  // Throws failed_precondition inside a step; the message names the call.
  virtual void check_outside_step(std::string_view call) const = 0;
  // Which of the module's copies, one for each local replica, code on this thread uses.
  virtual std::size_t component_here() const { return 0; }
};

// The variables of a module, in the order of its tensors.
struct ModuleVariables {
  std::vector<Variable> variables;
  std::shared_ptr<ModuleHome> home;
};

// Get and set the values of all these variables, with one request to each server.
COHORT_API std::vector<at::Tensor> values_of(const std::vector<Variable>& variables);
COHORT_API void set_values(const std::vector<Variable>& variables,
                           const std::vector<at::Tensor>& values);

// Throws invalid_argument if the factory has returned a module of replicate() again, whose tensors
// would change with those of the snapshot.
COHORT_API void check_new_module(const void* made, const void* earlier);

// Access to the modes (train() or eval()) of a module and its submodules.
struct ModuleModes {
  std::function<std::vector<bool>()> read;  // returns {} if the module was destroyed
  std::function<void(const std::vector<bool>& modes)> write;
};

// A module of one replica.
struct ModuleCopy {
  std::vector<NamedTensor> tensors;
  ModuleModes modes;
};

// The module's own mode, then those of its submodules, parents first.
template <class Module>
std::vector<bool> modes_of(Module& module) {
  std::vector<bool> modes{module.is_training()};
  for (const auto& inner : module.modules(/*include_self=*/false))
    modes.push_back(inner->is_training());
  return modes;
}

template <class Module>
void set_modes(Module& module, const std::vector<bool>& modes) {
  if (modes_of(module) == modes) return;
  std::size_t next = 0;
  const auto set = [&](auto& one) {
    if (next < modes.size()) one.train(modes[next++]);
  };
  set(module);
  for (const auto& inner : module.modules(/*include_self=*/false)) set(*inner);
}

// The values of a module's tensors, in the order of `variables`. Throws invalid_argument naming the
// first difference of names (in the module), dtypes or shapes.
COHORT_API std::vector<at::Tensor> values_for(const std::vector<Variable>& variables,
                                              const std::vector<NamedTensor>& tensors);

// Seeds LibTorch's default CPU generator. The destructor of the returned object restores its state;
// until then other callers of this function and traces wait.
COHORT_API std::shared_ptr<void> seed_default_generator(std::uint64_t seed);

// Returns the module of a TORCH_MODULE holder, a pointer or smart pointer, or the module itself.
template <class M>
auto& module_of(M& module) {
  if constexpr (requires { module.ptr(); })
    return *module.ptr();
  else if constexpr (requires { *module; })
    return *module;
  else
    return module;
}

// Parameters, then buffers. A tensor that the module registers under several names (tied weights)
// is listed once, with its first name.
template <class Module>
std::vector<NamedTensor> tensors_of(Module& module) {
  std::vector<NamedTensor> tensors;
  const auto add = [&](const std::string& name, const at::Tensor& tensor, bool is_trainable) {
    for (const NamedTensor& known : tensors)
      if (known.tensor.is_same(tensor)) return;
    tensors.push_back({name, tensor, is_trainable});
  };
  for (const auto& entry : module.named_parameters())
    add(entry.key(), entry.value(), entry.value().requires_grad());
  const std::size_t parameters = tensors.size();
  for (const auto& entry : module.named_buffers()) add(entry.key(), entry.value(), false);
  for (std::size_t i = parameters; i < tensors.size(); ++i) tensors[i].is_buffer = true;
  return tensors;
}

// Copies tensors of other memory orders (channels_last) to row-major order, which servers use.
COHORT_API void make_row_major(const std::vector<NamedTensor>& tensors);

// The tensors and modes of module i of Replicated<M>::Shared, in row-major order.
template <class Shared>
ModuleCopy copy_of(const std::shared_ptr<Shared>& shared, std::size_t i) {
  std::vector<NamedTensor> tensors = tensors_of(module_of(shared->modules[i]));
  make_row_major(tensors);
  const std::weak_ptr<Shared> weak = shared;
  return {std::move(tensors),
          {[weak, i] {
             const auto alive = weak.lock();
             return alive ? modes_of(module_of(alive->modules[i])) : std::vector<bool>();
           },
           [weak, i](const std::vector<bool>& modes) {
             if (const auto alive = weak.lock()) set_modes(module_of(alive->modules[i]), modes);
           }}};
}

}  // namespace internal

// A shared handle. Its module may be used only inside steps and replicas. variables(), snapshot()
// and load() are thread-safe.
template <class M>
class Replicated {
 public:
  struct Shared {
    std::vector<M> modules;  // one for each replica that has its own
    std::function<M()> factory;
    std::vector<Variable> variables;   // of every parameter and buffer, as tensors_of() lists them
    std::vector<Variable> parameters;  // the trainable ones
    std::shared_ptr<internal::ModuleHome> home;
  };
  explicit Replicated(std::shared_ptr<Shared> shared) : shared_(std::move(shared)) {}

  // The module of the current replica. Throws failed_precondition outside a replica and a step.
  auto* operator->() const {
    shared_->home->check_module_use();
    return &internal::module_of(shared_->modules[shared_->home->component_here()]);
  }
  auto& operator*() const { return *operator->(); }

  const std::vector<Variable>& parameters() const { return shared_->parameters; }
  const std::vector<Variable>& variables() const { return shared_->variables; }

  // Returns a new ordinary module with the current values, for evaluation and saving. Runs the
  // factory again, then reads from each server, each time under ClusterOptions::data_timeout. Call
  // join() first: while steps run, the values may be those of different moments. Throws unavailable
  // or deadline_exceeded, naming the server; failed_precondition inside a step, and inside a
  // different strategy's scope.
  M snapshot() const {
    shared_->home->check_outside_step("snapshot");
    M copy = [this] {
      const auto guard = internal::seed_default_generator(0);
      return shared_->factory();
    }();
    for (M& own : shared_->modules)
      internal::check_new_module(&internal::module_of(copy), &internal::module_of(own));
    const std::vector<at::Tensor> values = internal::values_of(shared_->variables);
    const std::vector<internal::NamedTensor> tensors =
        internal::tensors_of(internal::module_of(copy));
    for (std::size_t i = 0; i < tensors.size(); ++i) tensors[i].tensor.data().copy_(values.at(i));
    return copy;
  }
  // The inverse of snapshot(): assigns the values of an ordinary module of the same kind, for
  // example one that torch::load() has filled (a state dict). Optimizers keep their slots. Writes
  // to each server; updates of running steps take effect before or after that. Throws
  // invalid_argument, and sends nothing, if names, dtypes or shapes differ; also throws the errors
  // of snapshot().
  void load(const M& module) const {
    shared_->home->check_outside_step("load");
    M source = module;  // a handle, whose tensors are those of `module`
    internal::set_values(shared_->variables,
                         internal::values_for(shared_->variables,
                                              internal::tensors_of(internal::module_of(source))));
  }

 private:
  std::shared_ptr<Shared> shared_;
};

}  // namespace cohort
