// SPDX-License-Identifier: Apache-2.0
// Learning-rate schedules: each closure has the rate of its place among the scheduled ones.
#include <ATen/TensorOperators.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include <set>
#include <stdexcept>
#include <thread>

#include "cohort/data/iterator.h"
#include "cohort/optimizer/sgd.h"
#include "cohort/testing/coordinator_fixture.h"

namespace cohort {
namespace {

class CoordinatorSchedules : public testing::CoordinatorFixture {
 protected:
  static double rate_at(std::int64_t step) { return 1.0 / static_cast<double>(step + 1); }
  // Of the closures that the worker got, in their order.
  std::vector<double> rates() {
    std::vector<double> rates;
    for (const rpc::ClosureCall& call : worker.closures())
      rates.push_back(call.inputs.back().item<double>());
    return rates;
  }
  void schedule(ClusterCoordinator& coordinator, int count) {
    for (int i = 0; i < count; ++i) coordinator.schedule(step, at::ones({}));
  }

  const Variable w = strategy().variable("w", at::ones({}));
  Sgd sgd{{w}, {.learning_rate = &rate_at}};
  const Function step{[this](at::Tensor x) { sgd.minimize(w.tensor() * x); }};
};

TEST_F(CoordinatorSchedules, NeedNoNewTraceForANewRate) {
  ClusterCoordinator coordinator(strategy(), {.in_flight_per_worker = 4});
  schedule(coordinator, 6);
  EXPECT_TRUE(coordinator.join(std::chrono::seconds(60)));
  EXPECT_EQ(rates(), (std::vector<double>{1, 1.0 / 2, 1.0 / 3, 1.0 / 4, 1.0 / 5, 1.0 / 6}));
  EXPECT_EQ(sgd.iterations(), 6);
  EXPECT_EQ(coordinator.statistics().traces, 1U);
}

TEST_F(CoordinatorSchedules, ResumeAtAnIterationAndGiveWayToANumber) {
  ClusterCoordinator coordinator(strategy());
  schedule(coordinator, 1);
  sgd.set_iterations(99);
  schedule(coordinator, 1);
  sgd.set_learning_rate(0.5);
  schedule(coordinator, 1);
  EXPECT_TRUE(coordinator.join(std::chrono::seconds(60)));
  EXPECT_EQ(rates(), (std::vector<double>{1, 0.01, 0.5}));
  EXPECT_EQ(sgd.iterations(), 101);
  EXPECT_EQ(coordinator.statistics().traces, 1U);
}

TEST_F(CoordinatorSchedules, AClosureThatRunsAgainKeepsItsRate) {
  worker.answers = false;
  ClusterCoordinator coordinator(strategy(), {.in_flight_per_worker = 2});
  schedule(coordinator, 2);
  ASSERT_TRUE(worker.await_closures(2));
  worker.answers = true;
  worker.close_channels();
  EXPECT_TRUE(coordinator.join(std::chrono::seconds(60)));
  EXPECT_EQ(rates(), (std::vector<double>{1, 0.5, 1, 0.5}));
  EXPECT_EQ(sgd.iterations(), 2);
}

// The steps before it were never sent, and counted as running for ever.
TEST_F(CoordinatorSchedules, AnErrorOfOneInAnEpochLeavesTheStepsBeforeIt) {
  worker.on_peek = [](const rpc::PeekRequest&) {
    return rpc::PeekReply{.fields = 1, .tensors = {at::ones({})}};
  };
  Sgd picky({w}, {.learning_rate = [](std::int64_t i) -> double {
              if (i >= 3) throw std::runtime_error("no rate");
              return 0.1;
            }});
  const Function draw([&](Iterator& it) { picky.minimize(w.tensor() * it.next<at::Tensor>()); });
  ClusterCoordinator coordinator(
      strategy(), {.in_flight_per_worker = 4, .data_timeout = std::chrono::seconds(20)});
  const auto data = coordinator.create_per_worker_dataset(
      Dataset::range(10).map([](at::Tensor x) { return x.to(at::kFloat); }));
  EXPECT_THROW(coordinator.run_epoch(draw, data), std::exception);
  EXPECT_TRUE(coordinator.join(std::chrono::seconds(60)));
  EXPECT_EQ(rates(), (std::vector<double>{0.1, 0.1, 0.1}));
}

TEST_F(CoordinatorSchedules, TwoThreadsGetNoRateTwice) {
  constexpr int kSteps = 200;
  ClusterCoordinator coordinator(strategy());
  std::thread other([&] { schedule(coordinator, kSteps); });
  schedule(coordinator, kSteps);
  other.join();
  EXPECT_TRUE(coordinator.join(std::chrono::seconds(60)));
  const std::vector<double> all = rates();
  EXPECT_EQ(all.size(), 2U * kSteps);
  EXPECT_EQ(std::set<double>(all.begin(), all.end()).size(), all.size());
  EXPECT_EQ(sgd.iterations(), 2 * kSteps);
}

}  // namespace
}  // namespace cohort
