// SPDX-License-Identifier: Apache-2.0
#include "cohort/function/generator_scope.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/_fused_dropout.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <utility>

#include "cohort/core/random.h"
#include "cohort/function/generator_argument.h"

namespace cohort::function {
namespace {

// A key without a meaning of its own. It comes before those of autograd and autocast, and after the
// one with which functions are traced.
constexpr c10::DispatchKey kKey = c10::DispatchKey::TESTING_ONLY_GenericWrapper;

thread_local GeneratorScope* current_scope = nullptr;

// Where the operator computes: on the device that is an argument, else that of the first tensor.
c10::Device device_of(const torch::jit::Stack& stack, std::size_t first) {
  std::optional<c10::Device> device;
  for (std::size_t i = first; i < stack.size(); ++i) {
    const c10::IValue& value = stack[i];
    if (value.isDevice()) return value.toDevice();
    if (!device && value.isTensor() && value.toTensor().defined())
      device = value.toTensor().device();
  }
  return device.value_or(c10::Device(at::kCPU));
}

// Calls the operator with the scope's generator, unless the caller gives one.
void call_with_generator(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                         torch::jit::Stack* stack) {
  if (GeneratorScope* const scope = GeneratorScope::current()) {
    const std::vector<c10::Argument>& arguments = op.schema().arguments();
    const std::size_t first = stack->size() - arguments.size();
    for (std::size_t i = 0; i < arguments.size(); ++i) {
      c10::IValue& value = (*stack)[first + i];
      if (value.isNone() && is_generator(arguments[i]))
        value = scope->generator(device_of(*stack, first));
    }
  }
  op.redispatchBoxed(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kKey), stack);
}

// native_dropout() takes no generator, and draws on a GPU from the default one. The older operator
// with the same numbers takes one.
void drop_out_with_generator(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                             torch::jit::Stack* stack) {
  GeneratorScope* const scope = GeneratorScope::current();
  const std::size_t first = stack->size() - op.schema().arguments().size();
  const at::Tensor input = (*stack)[first].toTensor();
  const double p = (*stack)[first + 1].toDouble();
  const bool is_training = (*stack)[first + 2].isNone() || (*stack)[first + 2].toBool();
  if (scope != nullptr && input.is_cuda() && is_training && p > 0 && p < 1 && input.numel() > 0) {
    auto [output, mask] = at::_fused_dropout(input, 1 - p, scope->generator(input.device()));
    stack->resize(first);
    stack->emplace_back(std::move(output));
    stack->emplace_back(mask.to(at::kBool));
    return;
  }
  op.redispatchBoxed(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kKey), stack);
}

// For all operators that take a generator; those without one call these. It costs nothing while no
// thread has the key, and nothing for other operators.
struct Registrations {
  std::vector<c10::RegistrationHandleRAII> all;
  Registrations() {
    c10::Dispatcher& dispatcher = c10::Dispatcher::singleton();
    all.push_back(dispatcher.registerFallback(kKey, c10::KernelFunction::makeFallthrough(),
                                              "random numbers of threads"));
    if (dispatcher.findSchema({"aten::native_dropout", ""})) {
      all.push_back(dispatcher.registerImpl(
          {"aten::native_dropout", ""}, kKey,
          c10::KernelFunction::makeFromBoxedFunction<&drop_out_with_generator>(), c10::nullopt,
          nullptr, "random numbers of threads"));
    }
    for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
      const auto op = dispatcher.findSchema(name);
      if (!op) continue;
      const std::vector<c10::Argument>& arguments = op->schema().arguments();
      if (std::none_of(arguments.begin(), arguments.end(), is_generator)) continue;
      all.push_back(dispatcher.registerImpl(
          name, kKey, c10::KernelFunction::makeFromBoxedFunction<&call_with_generator>(),
          c10::nullopt, nullptr, "random numbers of threads"));
    }
  }
};

// Never undone: threads may end after the static objects of this library. Atomic because a compiler
// removes a plain pointer that nobody reads, and a check for leaks then finds none to the object.
std::atomic<const Registrations*> registrations = nullptr;

}  // namespace

GeneratorScope* GeneratorScope::current() { return current_scope; }

void GeneratorScope::prepare() {
  [[maybe_unused]] static const bool is_done = [] {
    registrations = new Registrations();
    return true;
  }();
}

GeneratorScope::GeneratorScope()
    : here_(current_scope, this), had_key_(c10::impl::tls_is_dispatch_key_included(kKey)) {
  prepare();
  c10::impl::tls_set_dispatch_key_included(kKey, true);
}

GeneratorScope::~GeneratorScope() { c10::impl::tls_set_dispatch_key_included(kKey, had_key_); }

const at::Generator& GeneratorScope::generator() {
  if (!generator_.defined()) generator_ = at::detail::createCPUGenerator(seed());
  return generator_;
}

const at::Generator& GeneratorScope::generator(c10::Device device) {
  if (!device.is_cuda()) return generator();
  if (!device.has_index()) device = c10::impl::VirtualGuardImpl(device.type()).getDevice();
  const auto known = std::find_if(of_gpus_.begin(), of_gpus_.end(),
                                  [&](const at::Generator& g) { return g.device() == device; });
  if (known != of_gpus_.end()) return *known;
  at::Generator of_default = at::globalContext().defaultGenerator(device);
  const std::lock_guard<std::mutex> lock(of_default.mutex());
  at::Generator own = of_default.clone();
  own.set_current_seed(seed());
  return of_gpus_.emplace_back(std::move(own));
}

std::unique_lock<std::recursive_mutex> lock_default_generator() {
  static std::recursive_mutex& mutex = *new std::recursive_mutex;
  return std::unique_lock(mutex);
}

std::uint64_t hash_of_generator() {
  at::Generator generator =
      current_scope != nullptr ? current_scope->generator() : at::detail::getDefaultCPUGenerator();
  const std::lock_guard<std::mutex> lock(generator.mutex());
  const at::mt19937_data_pod state =
      at::check_generator<at::CPUGeneratorImpl>(generator)->engine().data();
  // All of `state_` changes together, at every 624th number.
  std::uint64_t hash = mix_seed(state.seed_, state.state_.front());
  hash = mix_seed(hash, state.state_.back());
  return mix_seed(hash, state.next_);
}

}  // namespace cohort::function
