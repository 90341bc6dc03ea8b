// SPDX-License-Identifier: Apache-2.0
// The random numbers of replicas that run at the same time.
//
// With LibTorch's default generator, which replica gets which numbers would depend on the timing of
// their threads. So each replica has a GeneratorScope.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>

#include "cohort/core/mutex.h"
#include "cohort/core/thread_value.h"
#include "cohort/function/generator_scope.h"

namespace cohort::internal {

class ReplicaRandomScope;
class SavedGenerator;

// The number from which the generators of one run's replicas are seeded. It is drawn when a replica
// needs its first random number, from the generator of the thread that made this object: a run
// without random numbers leaves that generator as it is. So does one that ends with an exception,
// if the number was drawn after its last update. Thread-safe.
class RunSeed {
 public:
  RunSeed();
  // For tests: as if `base` was drawn.
  explicit RunSeed(std::uint64_t base);
  ~RunSeed();
  // The seed of one replica, which has completed so many updates.
  std::uint64_t of(int replica, int updates = 0);
  // Whether the default generator was seeded since this object was made.
  bool was_default_seeded() const;

  // Whether a replica has needed the number of the innermost run that began on this thread. False
  // without a run.
  static bool is_taken_here();
  // Draws it, if there is a run: a replica of another process needs it, and the default generators
  // of all processes go on alike.
  static void take_here();
  // A replica whose thread this is has completed its part of an update; or all replicas have, in a
  // merge that this thread makes for them. The numbers that the run has drawn until now stay drawn.
  static void note_update();
  static void note_update_of_all();

 private:
  void draw(int updates) COHORT_REQUIRES(mutex_);

  const ScopedValue<RunSeed*> current_;     // of this thread
  function::GeneratorScope* const caller_;  // in which the run began; nullptr: none
  const std::uint64_t default_seed_;
  const int exceptions_;                 // that were in flight when it was made
  std::atomic<int> updates_ = 0;         // of the first replica
  std::atomic<int> updates_of_all_ = 0;  // in merges
  Mutex mutex_;
  std::optional<std::uint64_t> base_ COHORT_GUARDED_BY(mutex_);
  std::unique_ptr<SavedGenerator> before_ COHORT_GUARDED_BY(mutex_);  // the draw
  int drawn_after_ COHORT_GUARDED_BY(mutex_) = 0;                     // so many updates
};

// The result of RunSeed::of() for the replica if `base` was drawn.
std::uint64_t replica_seed(std::uint64_t base, int replica);

// While it exists, operators on this thread draw from the generators of the replica.
class ReplicaRandomScope final : public function::GeneratorScope {
 public:
  ReplicaRandomScope(RunSeed& seed, int replica);
  ~ReplicaRandomScope() override;

  // The innermost one of this thread; nullptr outside of all.
  static ReplicaRandomScope* current();

 private:
  friend class RunSeed;
  std::uint64_t seed() override { return seed_.of(replica_, updates_); }

  RunSeed& seed_;
  const int replica_;
  int updates_ = 0;  // that the replica has completed
  const ScopedValue<ReplicaRandomScope*> current_;
};

}  // namespace cohort::internal
