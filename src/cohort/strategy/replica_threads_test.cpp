// SPDX-License-Identifier: Apache-2.0
#include "cohort/strategy/internal/replica_threads.h"

#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <latch>
#include <thread>
#include <vector>

#include "cohort/function/detail/autocast.h"

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

TEST(ReplicaThreads, HaveTheAutocastOfTheCallerAndKeepNoConvertedWeights) {
  ReplicaThreads threads;
  const at::ScalarType dtype = function::autocast_dtype();
  function::set_autocast_enabled(true);
  function::set_autocast_dtype(at::kBFloat16);
  const at::Tensor x = at::ones({2, 2});
  const at::Tensor weight = at::ones({2, 2}).requires_grad_(true);
  std::vector<at::Tensor> products(2);
  const auto multiply = [&](int i) {
    products.at(static_cast<std::size_t>(i)) = at::matmul(x, weight).detach();
  };
  for (const double value : {1.0, 3.0}) {
    {
      const at::NoGradGuard no_grad;
      weight.fill_(value);
    }
    threads.run(2, multiply);
    at::autocast::clear_cache();  // as the end of a guard does here
    for (const at::Tensor& product : products) {
      EXPECT_EQ(product.scalar_type(), at::kBFloat16);
      EXPECT_EQ(product[0][0].item<double>(), 2 * value);
    }
  }
  function::set_autocast_dtype(dtype);
  function::set_autocast_enabled(false);
}

}  // namespace
}  // namespace cohort::internal
