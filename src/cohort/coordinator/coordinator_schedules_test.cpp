// SPDX-License-Identifier: Apache-2.0
// Learning-rate schedules: each closure has the rate of its position among the scheduled ones.
#include <ATen/TensorOperators.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include <set>
#include <stdexcept>
#include <thread>

#include "cohort/data/iterator.h"
#include "cohort/optimizer/optimizers.h"
#include "cohort/testing/coordinator_fixture.h"

namespace cohort {
namespace {

class CoordinatorSchedules : public testing::CoordinatorFixture {
 protected:
  static double rate_at(std::int64_t step) { return 1.0 / static_cast<double>(step + 1); }
  // The rates of the closures that the worker got, in their order.
  std::vector<double> rates() {
    std::vector<double> rates;
    for (const rpc::ClosureCall& call : worker.closures())
      rates.push_back(
          call.inputs.at(call.inputs.size() - 2).item<double>());  // before weight_decay
    return rates;
  }
  void schedule(ClusterCoordinator& coordinator, int count) {
    for (int i = 0; i < count; ++i) coordinator.schedule(step, at::ones({}));
  }
  // The worker ends no closure by itself, and has an element to trace with.
  void answer_by_hand() {
    worker.answers = false;
    worker.on_peek = [](const rpc::PeekRequest&) {
      return rpc::PeekReply{.fields = 1, .tensors = {at::ones({})}};
    };
  }
  static PerWorkerDataset elements(ClusterCoordinator& coordinator, std::int64_t count) {
    return coordinator.create_per_worker_dataset(
        Dataset::range(count).map([](at::Tensor x) { return x.to(at::kFloat); }));
  }

  const Variable w = strategy().variable("w", at::ones({}));
  SGD sgd{{w}, {.learning_rate = &rate_at}};
  const Function step{[this](at::Tensor x) { sgd.minimize(w.tensor() * x); }};
  const Function draw{[this](Iterator& it) { sgd.minimize(w.tensor() * it.next<at::Tensor>()); }};
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

// Regression: the steps before it were never sent, and counted as running for ever.
TEST_F(CoordinatorSchedules, AnErrorOfOneInAnEpochLeavesTheStepsBeforeIt) {
  worker.on_peek = [](const rpc::PeekRequest&) {
    return rpc::PeekReply{.fields = 1, .tensors = {at::ones({})}};
  };
  SGD picky({w}, {.learning_rate = [](std::int64_t i) -> double {
              if (i >= 3) throw std::runtime_error("no rate");
              return 0.1;
            }});
  const Function draw_picky(
      [&](Iterator& it) { picky.minimize(w.tensor() * it.next<at::Tensor>()); });
  ClusterCoordinator coordinator(
      strategy(), {.in_flight_per_worker = 4, .progress_timeout = std::chrono::seconds(20)});
  const auto data = coordinator.create_per_worker_dataset(
      Dataset::range(10).map([](at::Tensor x) { return x.to(at::kFloat); }));
  EXPECT_THROW(coordinator.run_epoch(draw_picky, data), std::exception);
  EXPECT_TRUE(coordinator.join(std::chrono::seconds(60)));
  EXPECT_EQ(rates(), (std::vector<double>{0.1, 0.1, 0.1}));
  EXPECT_EQ(picky.iterations(), 3);
  picky.set_learning_rate(0.5);
  Epoch epoch = coordinator.begin_epoch(draw_picky, data);
  EXPECT_TRUE(epoch.try_next());
  EXPECT_EQ(rates().at(3), 0.5);
}

// Regression: the steps that were scheduled ahead kept their numbers, though they never ran.
TEST_F(CoordinatorSchedules, AnEpochThatIsDroppedLeavesTheRatesOfItsStepsToTheNextOne) {
  answer_by_hand();
  ClusterCoordinator coordinator(strategy(), {.in_flight_per_worker = 2});
  const PerWorkerDataset data = elements(coordinator, 99);
  {
    Epoch epoch = coordinator.begin_epoch(draw, data);
    std::thread caller([&] { EXPECT_TRUE(epoch.try_next()); });
    EXPECT_TRUE(worker.await_closures(2));
    worker.end({{.closure_id = 1}});
    EXPECT_TRUE(worker.await_closures(3));
    caller.join();
  }
  EXPECT_TRUE(coordinator.join(std::chrono::seconds(60)));
  EXPECT_EQ(sgd.iterations(), 1);
  worker.answers = true;
  Epoch epoch = coordinator.begin_epoch(draw, data);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(epoch.try_next());
  std::vector<double> all = rates();
  all.resize(6);
  EXPECT_EQ(all, (std::vector<double>{1, 1.0 / 2, 1.0 / 3, 1.0 / 2, 1.0 / 3, 1.0 / 4}));
}

TEST_F(CoordinatorSchedules, AStepOfAnEpochThatRunsAgainKeepsItsRate) {
  answer_by_hand();
  ClusterCoordinator coordinator(strategy(), {.in_flight_per_worker = 2});
  Epoch epoch = coordinator.begin_epoch(draw, elements(coordinator, 99));
  std::thread caller([&] { EXPECT_TRUE(epoch.try_next()); });
  EXPECT_TRUE(worker.await_closures(2));
  worker.close_channels();
  EXPECT_TRUE(worker.await_closures(4));
  worker.end({{.closure_id = 1}, {.closure_id = 2}});
  EXPECT_TRUE(worker.await_closures(6));
  caller.join();
  EXPECT_EQ(rates(), (std::vector<double>{1, 1.0 / 2, 1, 1.0 / 2, 1.0 / 3, 1.0 / 4}));
  EXPECT_EQ(sgd.iterations(), 4);
}

// Regression: the closure's number followed those of all steps that were scheduled ahead.
TEST_F(CoordinatorSchedules, AClosureBesideAnEpochComesBehindTheStepsThatWereSent) {
  answer_by_hand();
  ClusterCoordinator coordinator(strategy(), {.in_flight_per_worker = 2});
  Epoch epoch = coordinator.begin_epoch(draw, elements(coordinator, 99));
  std::thread caller([&] { EXPECT_TRUE(epoch.try_next()); });
  EXPECT_TRUE(worker.await_closures(2));
  schedule(coordinator, 1);
  EXPECT_EQ(sgd.iterations(), 3);
  worker.end({{.closure_id = 1}, {.closure_id = 2}});
  caller.join();
  EXPECT_TRUE(worker.await_closures(4));
  EXPECT_EQ(rates(), (std::vector<double>{1, 1.0 / 2, 1.0 / 3, 1.0 / 4}));
}

// Regression: the step was counted until it had ended, so that steps of other workers had higher
// numbers.
TEST_F(CoordinatorSchedules, AStepThatIsKnownToFindTheEndTakesNoRate) {
  answer_by_hand();
  ClusterCoordinator coordinator(strategy(), {.in_flight_per_worker = 2});
  Epoch epoch = coordinator.begin_epoch(draw, elements(coordinator, 1));
  std::thread caller([&] { EXPECT_TRUE(epoch.try_next()); });
  EXPECT_TRUE(worker.await_closures(2));
  EXPECT_EQ(sgd.iterations(), 1);
  worker.end(
      {{.closure_id = 1}, {.closure_id = 2, .status = rpc::ClosureEnd::Status::end_of_data}});
  caller.join();
  EXPECT_FALSE(epoch.try_next());
  EXPECT_EQ(sgd.iterations(), 1);
}

// Regression: the cancelled closures stayed counted.
TEST_F(CoordinatorSchedules, ClosuresThatAreCancelledBeforeTheyRunLeaveTheirRatesToTheNextOnes) {
  answer_by_hand();
  ClusterCoordinator coordinator(strategy(), {.in_flight_per_worker = 2});
  schedule(coordinator, 6);
  EXPECT_TRUE(worker.await_closures(2));
  worker.end({{.closure_id = 1,
               .status = rpc::ClosureEnd::Status::failed,
               .error = Error(ErrorCode::invalid_argument, "no", ErrorCause::application)}});
  EXPECT_TRUE(worker.await_closures(3));
  EXPECT_THROW(schedule(coordinator, 1), Error);
  EXPECT_EQ(sgd.iterations(), 1) << "the one that failed had run";
  worker.answers = true;
  schedule(coordinator, 2);
  EXPECT_TRUE(coordinator.join(std::chrono::seconds(60)));
  EXPECT_EQ(rates(), (std::vector<double>{1, 1.0 / 2, 1.0 / 3, 1.0 / 2, 1.0 / 3}));
}

TEST_F(CoordinatorSchedules, ACoordinatorThatGoesLeavesTheRatesOfWhatItNeverSent) {
  answer_by_hand();
  {
    ClusterCoordinator coordinator(strategy(), {.in_flight_per_worker = 2});
    schedule(coordinator, 6);
    EXPECT_TRUE(worker.await_closures(2));
  }
  EXPECT_EQ(sgd.iterations(), 2) << "those that it sent may have run";
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
