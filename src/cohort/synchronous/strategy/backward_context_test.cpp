// SPDX-License-Identifier: Apache-2.0
// The replica context on LibTorch's own threads, which get its ThreadLocalState.
#include "cohort/strategy/backward_context.h"

#include <ATen/ThreadLocalState.h>
#include <gtest/gtest.h>

#include <optional>
#include <thread>

#include "cohort/strategy/synchronous_strategy.h"

namespace cohort {
namespace {

using internal::BackwardContextScope;

// The replica context on another thread that has the state.
ReplicaContext* seen_with(const at::ThreadLocalState& state) {
  ReplicaContext* seen = nullptr;
  std::thread([&] {
    const at::ThreadLocalStateGuard guard(state);
    seen = get_replica_context();
  }).join();
  return seen;
}

TEST(BackwardContext, IsThatOfTheReplicaWhichBeganThePass) {
  MirroredStrategy strategy({"CPU:0", "CPU:1"});
  strategy.run([&] {
    ReplicaContext* const here = get_replica_context();
    EXPECT_NE(seen_with(at::ThreadLocalState()), here);
    const BackwardContextScope scope(here);
    EXPECT_EQ(seen_with(at::ThreadLocalState()), here);
  });
}

TEST(BackwardContext, EndsWithTheScope) {
  OneDeviceStrategy strategy;
  strategy.run([&] {
    ReplicaContext* const here = get_replica_context();
    std::optional<BackwardContextScope> scope(here);
    const at::ThreadLocalState kept;
    scope.reset();
    EXPECT_NE(seen_with(kept), here);
  });
}

TEST(BackwardContext, IsNoneInAMergeCall) {
  MirroredStrategy strategy({"CPU:0", "CPU:1"});
  strategy.run([&] {
    ReplicaContext* const here = get_replica_context();
    const BackwardContextScope scope(here);
    here->merge_call([&](Strategy&) { EXPECT_NE(seen_with(at::ThreadLocalState()), here); });
    EXPECT_EQ(seen_with(at::ThreadLocalState()), here);
  });
}

}  // namespace
}  // namespace cohort
