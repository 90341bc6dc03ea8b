// SPDX-License-Identifier: Apache-2.0
#include "cohort/replicas/replica_threads.h"

#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <latch>
#include <memory>
#include <thread>
#include <vector>

#include "cohort/function/autocast.h"
#include "cohort/strategy/synchronous_strategy.h"

namespace cohort::internal {
namespace {

using ::testing::Each;

TEST(ReplicaThreads, RunAllAtTheSameTimeAndTheFirstOneHere) {
  ReplicaThreads threads;
  std::latch all(3);
  std::array<std::thread::id, 3> ids;
  threads.run(3, [&](int i) {
    ids.at(static_cast<std::size_t>(i)) = std::this_thread::get_id();
    all.arrive_and_wait();
  });
  EXPECT_EQ(ids[0], std::this_thread::get_id());
  EXPECT_NE(ids[1], ids[0]);
  EXPECT_NE(ids[2], ids[0]);
  EXPECT_NE(ids[2], ids[1]);
}

TEST(ReplicaThreads, LiveLongerThanARun) {
  ReplicaThreads threads;
  std::array<std::thread::id, 2> ids;
  for (std::thread::id& id : ids) {
    threads.run(2, [&](int i) {
      if (i == 1) id = std::this_thread::get_id();
    });
  }
  EXPECT_EQ(ids[0], ids[1]);
}

TEST(ReplicaThreads, ARunInsideARunHasThreadsOfItsOwn) {
  ReplicaThreads threads;
  std::atomic<int> runs = 0;
  threads.run(2, [&](int) { threads.run(3, [&](int) { ++runs; }); });
  EXPECT_EQ(runs, 6);
}

TEST(ReplicaThreads, HaveTheGradModeOfTheCaller) {
  ReplicaThreads threads;
  std::vector<int> is_enabled(3, -1);
  const auto look = [&](int i) {
    is_enabled.at(static_cast<std::size_t>(i)) = at::GradMode::is_enabled() ? 1 : 0;
  };
  {
    const at::NoGradGuard no_grad;
    threads.run(3, look);
  }
  EXPECT_THAT(is_enabled, Each(0));
  threads.run(3, look);
  EXPECT_THAT(is_enabled, Each(1));
}

// Autocast to bfloat16 while it exists, on this thread.
class AutocastGuard {
 public:
  AutocastGuard() : dtype_(function::autocast_dtype()) {
    function::set_autocast_enabled(true);
    function::set_autocast_dtype(at::kBFloat16);
  }
  ~AutocastGuard() {
    at::autocast::clear_cache();
    function::set_autocast_dtype(dtype_);
    function::set_autocast_enabled(false);
  }
  AutocastGuard(const AutocastGuard&) = delete;
  AutocastGuard& operator=(const AutocastGuard&) = delete;

 private:
  const at::ScalarType dtype_;
};

TEST(ReplicaThreads, HaveTheAutocastOfTheCaller) {
  ReplicaThreads threads;
  const AutocastGuard autocast;
  std::vector<at::ScalarType> types(3);
  threads.run(3, [&](int i) {
    types.at(static_cast<std::size_t>(i)) =
        at::matmul(at::ones({2, 2}), at::ones({2, 2})).scalar_type();
  });
  EXPECT_THAT(types, Each(at::kBFloat16));
}

// Regression: under a guard around several runs, the caller's thread kept the converted weights of
// the first one, so that replica 0 computed with other weights than the others.
TEST(ReplicaThreads, ReplicasKeepNoConvertedWeightsFromRunToRun) {
  OneDeviceStrategy one;
  MirroredStrategy three({"CPU:0", "CPU:1", "CPU:2"});
  for (Strategy* strategy : {static_cast<Strategy*>(&one), static_cast<Strategy*>(&three)}) {
    const Variable weight = strategy->variable("w", at::ones({2, 2}));
    const AutocastGuard autocast;
    for (const double value : {1.0, 3.0, 2.0}) {
      weight.assign(at::full({2, 2}, value));
      const auto products = strategy->run([&] {
        return at::matmul(at::ones({2, 2}), weight.tensor()).sum().item<double>();
      });
      EXPECT_THAT(products.local_results(), Each(4 * 2 * value));
    }
  }
}

#if !defined(__SANITIZE_THREAD__)  // which starts no threads in a forked child
// Regression: a forked child waited for threads that only its parent has.
TEST(ReplicaThreads, AForkedChildHasThreadsOfItsOwn) {
  auto threads = std::make_unique<ReplicaThreads>();
  std::atomic<int> calls = 0;
  const auto count = [&](int) { ++calls; };
  threads->run(3, count);
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(60);  // a child that waits for ever ends by a signal
    calls = 0;
    threads->run(3, count);
    threads.reset();
    ::_exit(calls == 3 ? 0 : 1);
  }
  ASSERT_GT(child, 0);
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  calls = 0;
  threads->run(3, count);
  EXPECT_EQ(calls, 3);
}
#endif

}  // namespace
}  // namespace cohort::internal
