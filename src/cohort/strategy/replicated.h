// SPDX-License-Identifier: Apache-2.0
// An ordinary torch::nn module whose parameters and buffers are a strategy's variables.
#pragma once

#include <ATen/core/Tensor.h>

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
};

// What a replicated module asks of its strategy. Thread-safe.
class COHORT_API ModuleHome {
 public:
  virtual ~ModuleHome() = default;
  // failed_precondition outside a replica and a trace, naming snapshot() as the way.
  virtual void check_use() const = 0;
  // failed_precondition inside a step, naming the call.
  virtual void check_outside_step(std::string_view call) const = 0;
  // The current values, one pull a server.
  virtual std::vector<at::Tensor> read(const std::vector<Variable>& variables) const = 0;
  // Assigns them, one push a server.
  virtual void write(const std::vector<Variable>& variables,
                     const std::vector<at::Tensor>& values) const = 0;
};

// How train() and eval() have left a module and those in it.
struct ModuleModes {
  std::function<std::vector<bool>()> read;  // empty when the module has gone
  std::function<void(const std::vector<bool>& modes)> write;
};

// The module's own mode, then those of the modules in it, parents first.
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

// The values of a module's tensors for these variables. invalid_argument where names (in the
// module), dtypes or shapes differ, naming the first difference.
COHORT_API std::vector<at::Tensor> values_for(const std::vector<Variable>& variables,
                                              const std::vector<NamedTensor>& tensors);

// Seeds LibTorch's default CPU generator until the object goes, then puts its state back. Others
// who do so, and traces, wait for it.
COHORT_API std::shared_ptr<void> seed_default_generator(std::uint64_t seed);

// A TORCH_MODULE holder, a (smart) pointer, or the module itself -> the module.
template <class M>
auto& module_of(M& module) {
  if constexpr (requires { module.ptr(); })
    return *module.ptr();
  else if constexpr (requires { *module; })
    return *module;
  else
    return module;
}

// Parameters, then buffers. A tensor that the module has under several names (tied weights) comes
// once, with its first name.
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
  for (const auto& entry : module.named_buffers()) add(entry.key(), entry.value(), false);
  return tensors;
}

// Gives tensors of other orders (channels_last) row-major memory, in which servers hold values.
COHORT_API void make_row_major(const std::vector<NamedTensor>& tensors);

}  // namespace internal

// A shared handle. Its module may be used inside steps only; variables and snapshot() from any
// thread.
template <class M>
class Replicated {
 public:
  struct Shared {
    M module;
    std::function<M()> factory;
    std::vector<Variable> variables;   // of every parameter and buffer, as tensors_of() lists them
    std::vector<Variable> parameters;  // the trainable ones
    std::shared_ptr<internal::ModuleHome> home;
  };
  explicit Replicated(std::shared_ptr<Shared> shared) : shared_(std::move(shared)) {}

  // The module, inside a replica or a trace; elsewhere failed_precondition.
  auto* operator->() const {
    shared_->home->check_use();
    return &internal::module_of(shared_->module);
  }
  auto& operator*() const { return *operator->(); }

  const std::vector<Variable>& parameters() const { return shared_->parameters; }
  const std::vector<Variable>& variables() const { return shared_->variables; }

  // An ordinary module of its own with the current values: for evaluation and saving. Runs the
  // factory again; then blocks for one pull a server, under ClusterOptions::data_timeout each.
  // While scheduled steps have not ended, it has values of different moments: join() first.
  // unavailable and deadline_exceeded name the server; failed_precondition inside a step, and
  // inside another strategy's scope.
  M snapshot() const {
    shared_->home->check_outside_step("snapshot");
    M copy = [this] {
      const auto guard = internal::seed_default_generator(0);
      return shared_->factory();
    }();
    const std::vector<at::Tensor> values = shared_->home->read(shared_->variables);
    const std::vector<internal::NamedTensor> tensors =
        internal::tensors_of(internal::module_of(copy));
    for (std::size_t i = 0; i < tensors.size(); ++i) tensors[i].tensor.data().copy_(values.at(i));
    return copy;
  }
  // The inverse: gives the parameters and buffers the values of an ordinary module of the same
  // kind, as one that torch::load() has filled (a state dict). Optimizers keep their slots. Blocks
  // for one push a server; while scheduled steps have not ended, their updates count before or
  // after it. invalid_argument where names, dtypes or shapes differ, and nothing is sent; other
  // errors as snapshot()'s.
  void load(const M& module) const {
    shared_->home->check_outside_step("load");
    M source = module;  // a handle, whose tensors are those of `module`
    shared_->home->write(shared_->variables,
                         internal::values_for(shared_->variables,
                                              internal::tensors_of(internal::module_of(source))));
  }

 private:
  std::shared_ptr<Shared> shared_;
};

}  // namespace cohort
