// SPDX-License-Identifier: Apache-2.0
// An ordinary torch::nn module whose parameters and buffers are variables of a strategy. With
// several replicas in one process, each has a copy of its own. SyncBatchNorm is a layer for such
// modules.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <ostream>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <unordered_set>
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

// Access to the modes (train() or eval()) of a module and its submodules.
struct ModuleModes {
  std::function<std::vector<bool>()> read;  // returns {} if the module was destroyed
  std::function<void(const std::vector<bool>& modes)> write;
};

// A module of one replica, whose modes its home restores after each run that has used it.
// Thread-safe, but for check_same_tensors(), beside which nothing may use the module.
struct ModuleUse {
  std::string name = {};  // of the replicated module
  ModuleModes modes = {};
  std::size_t replica = 0;                // of this process
  std::vector<NamedTensor> made_of = {};  // those that have become variables
  // The memory of `made_of` when the factory had returned them; may have been freed since.
  std::vector<const void*> first_memory = {};
  // The present tensors; nullopt if the module was destroyed.
  std::function<std::optional<std::vector<NamedTensor>>()> tensors = {};
  std::atomic<std::uint64_t> last_run = 0;  // a number that the home has given to it
  std::atomic<std::uint64_t> runs = 0;      // that have used it and were completed
  // Storages of `made_of` when it was known that no other replica has them. Its home locks them.
  std::vector<const void*> known_storages = {};
};
// Throws failed_precondition if the module has registered, replaced or lost a parameter or buffer
// since it was made: what is no variable is neither trained nor saved. The time grows with their
// number.
COHORT_API void check_same_tensors(const ModuleUse& use, std::string_view call);

// Where a replicated module may be used. Thread-safe.
class COHORT_API ModuleHome {
 public:
  virtual ~ModuleHome() = default;
  // Throws failed_precondition outside a replica and a step; the message names the module, or
  // suggests snapshot().
  virtual void check_module_use(std::string_view module) const = 0;
  // Called after that, before each use.
  virtual void note_module_use(const std::shared_ptr<ModuleUse>& /*module*/) {}
  // Throws failed_precondition inside a step; the message names the call.
  virtual void check_outside_step(std::string_view call) const = 0;
  // Throws failed_precondition if other processes have other values of these variables. If the
  // others are gone, logs a warning.
  virtual void check_snapshot(std::span<const Variable> /*variables*/) const {}
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
// For snapshot(), which the program calls at this place. The errors of check_snapshot().
COHORT_API std::vector<at::Tensor> snapshot_values(const ModuleHome& home,
                                                   const std::vector<Variable>& variables,
                                                   const char* file, int line);
COHORT_API void set_values(const std::vector<Variable>& variables,
                           const std::vector<at::Tensor>& values);

// Throws invalid_argument if the factory has returned an earlier module again, whose tensors would
// change with those of the new one.
COHORT_API void check_new_module(std::string_view call, const void* made, const void* earlier);
// Gives the tensors of a snapshot's module memory of their own where they have that of the `live`
// modules or of another variable, as where the factory calls set_data() with a captured tensor.
// Throws invalid_argument, naming the tensor, if one is itself a tensor of those.
COHORT_API void make_independent(const std::vector<NamedTensor>& made,
                                 const std::vector<std::shared_ptr<ModuleUse>>& live);
// Where the tensors are, as far as two of them can be in one place; null for one without memory.
COHORT_API std::vector<const void*> memory_of(const std::vector<NamedTensor>& tensors);

// A module of one replica.
struct ModuleCopy {
  std::vector<NamedTensor> tensors;
  std::shared_ptr<ModuleUse> use;
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

// Modules of one class do not begin alike: an ensemble would have equal members. `number`: of
// modules that the strategy has made before.
std::uint64_t seed_of_module(std::uint64_t seed, std::uint64_t number);

// For Initializer::make(): 0, or what torch::manual_seed() was given.
std::uint64_t seed_of_initializers();

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
  std::unordered_set<const void*> known;
  const auto add = [&](const std::string& name, const at::Tensor& tensor, bool is_trainable) {
    if (known.insert(tensor.unsafeGetTensorImpl()).second)
      tensors.push_back({name, tensor, is_trainable});
  };
  for (const auto& entry : module.named_parameters())
    add(entry.key(), entry.value(), entry.value().requires_grad());
  const std::size_t parameters = tensors.size();
  for (const auto& entry : module.named_buffers()) add(entry.key(), entry.value(), false);
  for (std::size_t i = parameters; i < tensors.size(); ++i) tensors[i].is_buffer = true;
  return tensors;
}

// Copies tensors of other memory orders (channels_last), and expanded ones, to row-major order,
// which servers use. Throws invalid_argument for an expanded one whose memory something else has,
// too: it would see no more what is written there.
COHORT_API void make_row_major(const std::vector<NamedTensor>& tensors);

// The tensors of module i of Replicated<M>::Shared, in row-major order. Adds its use to `shared`.
// The errors of check_new_module() and make_row_major().
template <class Shared>
ModuleCopy copy_of(const std::shared_ptr<Shared>& shared, std::size_t i, const std::string& name) {
  for (std::size_t earlier = 0; earlier < i; ++earlier)
    check_new_module("replicate", &module_of(shared->modules[i]),
                     &module_of(shared->modules[earlier]));
  std::vector<NamedTensor> tensors = tensors_of(module_of(shared->modules[i]));
  std::vector<const void*> first_memory = memory_of(tensors);
  make_row_major(tensors);
  const std::weak_ptr<Shared> weak = shared;
  auto use = std::make_shared<ModuleUse>();
  use->name = name;
  use->replica = i;
  use->made_of = tensors;
  use->first_memory = std::move(first_memory);
  use->tensors = [weak, i]() -> std::optional<std::vector<NamedTensor>> {
    const auto alive = weak.lock();
    if (!alive) return std::nullopt;
    return tensors_of(module_of(alive->modules[i]));
  };
  use->modes = {[weak, i] {
                  const auto alive = weak.lock();
                  return alive ? modes_of(module_of(alive->modules[i])) : std::vector<bool>();
                },
                [weak, i](const std::vector<bool>& modes) {
                  if (const auto alive = weak.lock())
                    set_modes(module_of(alive->modules[i]), modes);
                }};
  shared->uses.push_back(use);
  return {std::move(tensors), std::move(use)};
}

// The arguments of a layer of batch normalization. The tensors but `input` may be undefined.
struct BatchNormCall {
  const at::Tensor& input;  // [N, channels, …], of the replica's own rows
  const at::Tensor& weight;
  const at::Tensor& bias;
  const at::Tensor& running_mean;
  const at::Tensor& running_var;
  const at::Tensor& num_batches_tracked;
  bool uses_batch_statistics;
  bool updates_running_statistics;
  std::optional<double> momentum;  // not given: running statistics are means of all batches
  double epsilon;
};
// Where batch statistics are used in one of several replicas, all replicas make the call together,
// and they are those of all rows.
COHORT_API at::Tensor batch_normalized(const BatchNormCall& call);
// `dimensions`: 1, 2 or 3, besides those of rows and channels.
COHORT_API void check_batch_norm_input(const at::Tensor& input, std::size_t dimensions,
                                       std::int64_t channels);

// 1, 2 or 3 for the module of LibTorch's BatchNorm1d, 2d or 3d, else 0.
template <class Impl, std::size_t D = 1>
constexpr std::size_t batch_norm_dimensions() {
  if constexpr (D > 3 || !requires { typename Impl::template BatchNormImplBase<D, Impl>; }) {
    return 0;
  } else if constexpr (std::is_base_of_v<typename Impl::template BatchNormImplBase<D, Impl>,
                                         Impl>) {
    return D;
  } else {
    return batch_norm_dimensions<Impl, D + 1>();
  }
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
    std::vector<std::shared_ptr<internal::ModuleUse>> uses = {};  // of the modules
  };
  explicit Replicated(std::shared_ptr<Shared> shared) : shared_(std::move(shared)) {}

  // The module of the current replica. Changes by train() and eval() end with the run or step in
  // which it was got: do not keep the pointer for later ones. Its parameters and buffers stay those
  // of the factory's module: run() throws failed_precondition after the first, second, fourth, …
  // run that has used the module if one was registered or replaced since; and after any run if
  // set_data() has given the tensors of two replicas one memory. Throws failed_precondition outside
  // a replica and a step.
  auto* operator->() const {
    shared_->home->check_module_use(shared_->uses.front()->name);
    const std::size_t here = shared_->home->component_here();
    shared_->home->note_module_use(shared_->uses[here]);
    return &internal::module_of(shared_->modules[here]);
  }
  auto& operator*() const { return *operator->(); }

  const std::vector<Variable>& parameters() const { return shared_->parameters; }
  const std::vector<Variable>& variables() const { return shared_->variables; }

  // Returns a new ordinary module with the current values, for evaluation and saving. Runs the
  // factory again. The module shares no memory with the strategy: where the factory gives captured
  // memory by set_data(), it gets its own. A captured tensor itself, as in from_pretrained(), is an
  // invalid_argument: register its clone(); save_values() saves without a module.
  //
  // With replicas in this process, a buffer has the mean of the replicas, or the first one's
  // integers; no run may be in progress. On parameter servers, reads from each server, each time
  // under ClusterOptions::data_timeout. Call join() first: while steps run, the values may be those
  // of different moments. All workers of a MultiWorkerMirroredStrategy make this call; the place in
  // the program is for messages on the others. Throws unavailable or deadline_exceeded, naming the
  // server; failed_precondition inside a step, inside a different strategy's scope, if the workers
  // have different values, and if a parameter or buffer was registered or replaced since
  // replicate().
  M snapshot(const char* file = __builtin_FILE(), int line = __builtin_LINE()) const {
    shared_->home->check_outside_step("snapshot");
    for (const auto& use : shared_->uses) internal::check_same_tensors(*use, "snapshot");
    M copy = [this] {
      const auto guard = internal::seed_default_generator(0);
      return shared_->factory();
    }();
    for (M& own : shared_->modules)
      internal::check_new_module("snapshot", &internal::module_of(copy), &internal::module_of(own));
    const std::vector<internal::NamedTensor> tensors =
        internal::tensors_of(internal::module_of(copy));
    internal::make_independent(tensors, shared_->uses);
    const std::vector<at::Tensor> values =
        internal::snapshot_values(*shared_->home, shared_->variables, file, line);
    for (std::size_t i = 0; i < tensors.size(); ++i) tensors[i].tensor.data().copy_(values.at(i));
    return copy;
  }
  // The inverse of snapshot(): assigns the values of an ordinary module of the same kind, for
  // example one that torch::load() has filled (a state dict). All replicas get them. Optimizers
  // keep their slots. No run may be in progress. On parameter servers, writes to each server;
  // updates of running steps take effect before or after that. Throws
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

// The module that SyncBatchNorm holds, with the options, parameters and buffers of the ordinary
// one. Used only from the thread of its replica.
template <class BatchNorm, class Ordinary = typename BatchNorm::ContainedType>
class SyncBatchNormImpl
    : public Ordinary::template NormImplBase<internal::batch_norm_dimensions<Ordinary>(),
                                             SyncBatchNormImpl<BatchNorm>,
                                             decltype(Ordinary::options)> {
  static constexpr std::size_t kDimensions = internal::batch_norm_dimensions<Ordinary>();
  static_assert(kDimensions > 0,
                "SyncBatchNorm takes torch::nn::BatchNorm1d, BatchNorm2d or BatchNorm3d");
  using Base = typename Ordinary::template NormImplBase<kDimensions, SyncBatchNormImpl<BatchNorm>,
                                                        decltype(Ordinary::options)>;

 public:
  using Base::Base;

  // input: [N, C, …], floating-point, as for the ordinary module; returns the same shape and dtype.
  // Throws invalid_argument for another rank or number of channels, and, in every replica, if batch
  // statistics are used and all replicas together have at most one value for each channel; the
  // errors of ReplicaContext::all_gather().
  at::Tensor forward(const at::Tensor& input) {
    _check_input_dim(input);
    const bool has_running_statistics = this->options.track_running_stats();
    const auto momentum = this->options.momentum();  // LibTorch's optional in old versions
    return internal::batch_normalized(
        {.input = input,
         .weight = this->weight,
         .bias = this->bias,
         .running_mean = this->running_mean,
         .running_var = this->running_var,
         .num_batches_tracked = this->num_batches_tracked,
         .uses_batch_statistics = this->is_training() || !has_running_statistics,
         .updates_running_statistics = this->is_training() && has_running_statistics,
         .momentum = momentum ? std::optional<double>(*momentum) : std::nullopt,
         .epsilon = this->options.eps()});
  }

  void pretty_print(std::ostream& stream) const override {
    stream << "cohort::SyncBatchNorm<torch::nn::BatchNorm" << kDimensions << "d>("
           << this->options.num_features() << ", eps=" << this->options.eps() << ")";
  }

 protected:
  void _check_input_dim(const at::Tensor& input) override {  // NOLINT: the name is LibTorch's
    internal::check_batch_norm_input(input, kDimensions, this->options.num_features());
  }
};

// Batch normalization over the rows of all replicas (tf.keras.layers.BatchNormalization with
// synchronized=True, torch's SyncBatchNorm). In run() with several replicas it computes what
// BatchNorm computes in one process with the whole batch: outputs, gradients, also of gradients,
// and running statistics. So replicas may have different numbers of rows, also 0.
//
//   cohort::SyncBatchNorm<torch::nn::BatchNorm2d> norm(64);   // BatchNorm1d, 2d or 3d
//   torch::nn::Sequential net(torch::nn::Conv2d(3, 64, 3), norm, torch::nn::ReLU());
//
// All replicas must make the same calls, in the forward and in the backward pass: each meets the
// others once. Where running statistics are used (after eval()), and outside of several replicas,
// it is the ordinary module, and calls meet nobody. Statistics are combined in float64; those of
// float16 and bfloat16 inputs are computed in float32.
//
// The state dict is that of the ordinary module, so torch::load() reads the file of one.
// `BatchNorm` is the holder of the ordinary module (TORCH_MODULE), and this is a holder too. The
// module is not an ordinary one for dynamic casts (as<torch::nn::BatchNorm2d>()), as in PyTorch.
template <class BatchNorm>
using SyncBatchNorm = typename BatchNorm::template ModuleHolder<SyncBatchNormImpl<BatchNorm>>;

}  // namespace cohort
