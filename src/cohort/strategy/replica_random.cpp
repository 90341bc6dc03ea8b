// SPDX-License-Identifier: Apache-2.0
#include "cohort/strategy/internal/replica_random.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/_fused_dropout.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <string>
#include <vector>

#include "cohort/core/detail/random.h"
#include "cohort/core/log.h"
#include "cohort/function/detail/generator_argument.h"
#include "cohort/strategy/internal/undo/saved_generator.h"

namespace cohort::internal {
namespace {

// A key without a meaning of its own. It comes before those of autograd and autocast, and after the
// one with which functions are traced.
constexpr c10::DispatchKey kKey = c10::DispatchKey::TESTING_ONLY_GenericWrapper;

thread_local ReplicaRandomScope* current_scope = nullptr;
thread_local RunSeed* current_seed = nullptr;

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

// Calls the operator with the replica's generator, unless the caller gives one.
void call_with_generator(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                         torch::jit::Stack* stack) {
  if (ReplicaRandomScope* const scope = ReplicaRandomScope::current()) {
    const std::vector<c10::Argument>& arguments = op.schema().arguments();
    const std::size_t first = stack->size() - arguments.size();
    for (std::size_t i = 0; i < arguments.size(); ++i) {
      c10::IValue& value = (*stack)[first + i];
      if (value.isNone() && function::is_generator(arguments[i]))
        value = scope->generator(device_of(*stack, first));
    }
  }
  op.redispatchBoxed(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kKey), stack);
}

// native_dropout() takes no generator, and draws on a GPU from the default one. The older operator
// with the same numbers takes one.
void drop_out_with_generator(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                             torch::jit::Stack* stack) {
  ReplicaRandomScope* const scope = ReplicaRandomScope::current();
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
                                              "random numbers of replicas"));
    if (dispatcher.findSchema({"aten::native_dropout", ""})) {
      all.push_back(dispatcher.registerImpl(
          {"aten::native_dropout", ""}, kKey,
          c10::KernelFunction::makeFromBoxedFunction<&drop_out_with_generator>(), c10::nullopt,
          nullptr, "random numbers of replicas"));
    }
    for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
      const auto op = dispatcher.findSchema(name);
      if (!op) continue;
      const std::vector<c10::Argument>& arguments = op->schema().arguments();
      if (std::none_of(arguments.begin(), arguments.end(), function::is_generator)) continue;
      all.push_back(dispatcher.registerImpl(
          name, kKey, c10::KernelFunction::makeFromBoxedFunction<&call_with_generator>(),
          c10::nullopt, nullptr, "random numbers of replicas"));
    }
  }
};

// Never undone: threads may end after the static objects of this library. Atomic because a compiler
// removes a plain pointer that nobody reads, and a check for leaks then finds none to the object.
std::atomic<const Registrations*> registrations = nullptr;

void register_once() {
  [[maybe_unused]] static const bool is_done = [] {
    registrations = new Registrations();
    return true;
  }();
}

std::uint64_t seed_of_default() {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const std::lock_guard<std::mutex> lock(generator.mutex());
  return generator.current_seed();
}

}  // namespace

RunSeed::RunSeed()
    : outer_(current_seed),
      caller_(ReplicaRandomScope::current()),
      default_seed_(seed_of_default()),
      exceptions_(std::uncaught_exceptions()) {
  current_seed = this;
}

RunSeed::~RunSeed() {
  current_seed = outer_;
  const Lock lock(mutex_);
  const bool has_failed = std::uncaught_exceptions() > exceptions_;
  if (has_failed && before_ && drawn_after_ >= updates_ + updates_of_all_) before_->restore();
}

RunSeed::RunSeed(std::uint64_t base) : RunSeed() { base_ = base; }

void RunSeed::draw(int updates) {
  if (base_) return;
  at::Generator generator =
      caller_ != nullptr ? caller_->generator() : at::detail::getDefaultCPUGenerator();
  before_ = std::make_unique<SavedGenerator>();
  drawn_after_ = updates + updates_of_all_;
  const std::lock_guard<std::mutex> lock(generator.mutex());
  before_->save(generator);
  base_ = at::check_generator<at::CPUGeneratorImpl>(generator)->random64();
}

std::uint64_t RunSeed::of(int replica, int updates) {
  const Lock lock(mutex_);
  draw(updates);
  return replica_seed(*base_, replica);
}

bool RunSeed::is_taken_here() {
  if (current_seed == nullptr) return false;
  const Lock lock(current_seed->mutex_);
  return current_seed->base_.has_value();
}

void RunSeed::take_here() {
  if (current_seed == nullptr) return;
  const Lock lock(current_seed->mutex_);
  current_seed->draw(current_seed->updates_);
}

void RunSeed::note_update() {
  if (current_seed != nullptr) ++current_seed->updates_;
  ReplicaRandomScope* const scope = ReplicaRandomScope::current();
  if (scope != nullptr && (current_seed == nullptr || &scope->seed_ == current_seed))
    ++scope->updates_;
}

void RunSeed::note_update_of_all() {
  if (current_seed != nullptr) ++current_seed->updates_of_all_;
}

bool RunSeed::was_default_seeded() const { return seed_of_default() != default_seed_; }

std::uint64_t replica_seed(std::uint64_t base, int replica) {
  return mix_seed(base, static_cast<std::uint64_t>(replica));
}

ReplicaRandomScope* ReplicaRandomScope::current() { return current_scope; }

ReplicaRandomScope::ReplicaRandomScope(RunSeed& seed, int replica)
    : seed_(seed),
      replica_(replica),
      outer_(current_scope),
      had_key_(c10::impl::tls_is_dispatch_key_included(kKey)) {
  register_once();
  c10::impl::tls_set_dispatch_key_included(kKey, true);
  current_scope = this;
}

ReplicaRandomScope::~ReplicaRandomScope() {
  current_scope = outer_;
  c10::impl::tls_set_dispatch_key_included(kKey, had_key_);
  static std::atomic<bool> has_warned{false};
  if ((!generator_.defined() && of_gpus_.empty()) || !seed_.was_default_seeded() ||
      has_warned.exchange(true))
    return;
  log_warn(
      "LibTorch's default generator was seeded (torch::manual_seed) during a run of several "
      "replicas that draws random numbers; it changes nothing for the replicas, each of which has "
      "a generator of its own, so seed the default generator before the run");
}

const at::Generator& ReplicaRandomScope::generator() {
  if (!generator_.defined())
    generator_ = at::detail::createCPUGenerator(seed_.of(replica_, updates_));
  return generator_;
}

const at::Generator& ReplicaRandomScope::generator(c10::Device device) {
  if (!device.is_cuda()) return generator();
  if (!device.has_index()) device = c10::impl::VirtualGuardImpl(device.type()).getDevice();
  const auto known = std::find_if(of_gpus_.begin(), of_gpus_.end(),
                                  [&](const at::Generator& g) { return g.device() == device; });
  if (known != of_gpus_.end()) return *known;
  at::Generator of_default = at::globalContext().defaultGenerator(device);
  const std::lock_guard<std::mutex> lock(of_default.mutex());
  at::Generator own = of_default.clone();
  own.set_current_seed(seed_.of(replica_, updates_));
  return of_gpus_.emplace_back(std::move(own));
}

}  // namespace cohort::internal
