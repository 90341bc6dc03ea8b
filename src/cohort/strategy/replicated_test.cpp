// SPDX-License-Identifier: Apache-2.0
#include "cohort/strategy/replicated.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include <mutex>
#include <thread>
#include <vector>

namespace cohort::internal {
namespace {

at::Tensor generator_state() {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const std::lock_guard lock(generator.mutex());
  return generator.get_state();
}

TEST(SeedDefaultGenerator, DrawsTheSameAndPutsTheStateBack) {
  const at::Tensor before = generator_state();
  const auto drawn = [] {
    const auto guard = seed_default_generator(7);
    return at::empty({4}).uniform_();
  };
  EXPECT_TRUE(at::equal(drawn(), drawn()));
  EXPECT_TRUE(at::equal(generator_state(), before));
}

// Regression: each thread saved the other's seeded state, and the program then drew from that
// state.
TEST(SeedDefaultGenerator, ThreadsTakeTurns) {
  const at::Tensor before = generator_state();
  at::Tensor alone;
  {
    const auto guard = seed_default_generator(7);
    alone = at::empty({4}).uniform_();
  }
  std::vector<int> wrong(4);
  std::vector<std::thread> threads;
  for (int& count : wrong) {
    threads.emplace_back([&] {
      for (int i = 0; i < 500; ++i) {
        const auto guard = seed_default_generator(7);
        count += at::equal(at::empty({4}).uniform_(), alone) ? 0 : 1;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, std::vector<int>(4));
  EXPECT_TRUE(at::equal(generator_state(), before));
}

}  // namespace
}  // namespace cohort::internal
