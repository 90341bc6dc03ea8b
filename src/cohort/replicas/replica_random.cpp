// SPDX-License-Identifier: Apache-2.0
#include "cohort/replicas/replica_random.h"

#include <ATen/CPUGeneratorImpl.h>

#include <exception>
#include <mutex>

#include "cohort/core/log.h"
#include "cohort/core/random.h"
#include "cohort/replicas/saved_generator.h"

namespace cohort::internal {
namespace {

thread_local ReplicaRandomScope* current_scope = nullptr;
thread_local RunSeed* current_seed = nullptr;

std::uint64_t seed_of_default() {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const std::lock_guard<std::mutex> lock(generator.mutex());
  return generator.current_seed();
}

}  // namespace

RunSeed::RunSeed()
    : current_(current_seed, this),
      caller_(function::GeneratorScope::current()),
      default_seed_(seed_of_default()),
      exceptions_(std::uncaught_exceptions()) {}

RunSeed::~RunSeed() {
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
    : seed_(seed), replica_(replica), current_(current_scope, this) {}

ReplicaRandomScope::~ReplicaRandomScope() {
  static std::atomic<bool> has_warned{false};
  if (!has_generator() || !seed_.was_default_seeded() || has_warned.exchange(true)) return;
  log_warn(
      "LibTorch's default generator was seeded (torch::manual_seed) during a run of several "
      "replicas that draws random numbers; it changes nothing for the replicas, each of which has "
      "a generator of its own, so seed the default generator before the run");
}

}  // namespace cohort::internal
