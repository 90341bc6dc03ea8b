// SPDX-License-Identifier: Apache-2.0
// Per-worker values, and the options of schedule(), with standard servers in other processes.
#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <limits>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "cohort/coordinator/cluster_coordinator.h"
#include "cohort/function/inspection.h"
#include "cohort/testing/cluster/test_cluster.h"
#include "cohort/testing/throws_error.h"

namespace cohort {
namespace {

using ::testing::HasSubstr;
using testing::TestCluster;
using testing::throws_error;

class ScheduleOptionsTest : public ::testing::Test {
 protected:
  std::int64_t number_of(const RemoteValue& value) {
    return value.fetch().tensor().item<std::int64_t>();
  }

  TestCluster cluster{{.workers = 2, .ps = 1, .command = {COHORT_COMMAND, "server"}}};
  ParameterServerStrategy strategy{cluster.resolver()};
  ClusterCoordinator coordinator{strategy};
};

TEST_F(ScheduleOptionsTest, AWorkerRunsItsClosures) {
  const Function index([] { return current_worker_index(); });
  for (int i = 0; i < 20; ++i)
    EXPECT_EQ(number_of(coordinator.schedule(index, {.worker = i % 2})), i % 2);
  EXPECT_THAT([&] { coordinator.schedule(index, {.worker = 2}); },
              throws_error(ErrorCode::invalid_argument, "worker from 0 to 1, got 2"));
}

TEST_F(ScheduleOptionsTest, AClosureOfALostWorkerWaitsForIt) {
  const Function index([] { return current_worker_index(); });
  cluster.kill("worker:1");
  const RemoteValue own = coordinator.schedule(index, {.worker = 1});
  EXPECT_EQ(number_of(coordinator.schedule(index)), 0);
  EXPECT_FALSE(own.is_ready());
  cluster.restart("worker:1");
  EXPECT_EQ(number_of(own), 1);
}

TEST_F(ScheduleOptionsTest, AClosureOfOneWorkerRaisesTheErrorOfAnEarlierOne) {
  const Function bad([](at::Tensor x) { check_finite(x, "x"); });
  const Function fine([] { return at::ones({}); });
  const RemoteValue failed = coordinator.schedule(
      bad, {.worker = 0}, at::full({}, std::numeric_limits<float>::infinity()));
  EXPECT_THAT([&] { failed.fetch(); }, throws_error(ErrorCode::invalid_argument, "'x'"));
  EXPECT_THAT([&] { coordinator.schedule(fine, {.worker = 1}); },
              throws_error(ErrorCode::invalid_argument, "'x'"));
  coordinator.schedule(fine, {.worker = 1}).fetch();
}

TEST_F(ScheduleOptionsTest, RemoteValuesAreSentIfTheCallSaysSo) {
  const Function twice([](at::Tensor x) { return x.mul(2); });
  const Function first([](const Nest& pair) { return pair.items()[0].tensor().add(1); });
  const RemoteValue two = coordinator.schedule(twice, at::ones({}));
  EXPECT_THAT([&] { coordinator.schedule(twice, two); },
              throws_error(ErrorCode::invalid_argument, "moves_remote_values"));
  const RemoteValue three =
      coordinator.schedule(first, {.moves_remote_values = true}, Nest::list({two, 7}));
  EXPECT_EQ(three.fetch().tensor().item<float>(), 3);
}

TEST_F(ScheduleOptionsTest, EachWorkerHasItsOwnValue) {
  const PerWorkerValue here = coordinator.create_per_worker_value([](const InputContext& worker) {
    return Nest::map({{"index", at::full({}, worker.input_pipeline_id, at::kLong)}});
  });
  const PerWorkerValue there = coordinator.create_per_worker_value(
      Function([](at::Tensor worker) { return at::full({1000}, 10, at::kLong).add(worker); }));
  const Function sum([](const Nest& own, at::Tensor table, at::Tensor x) {
    return own.entry("index").tensor().add(table.max()).add(x);
  });
  for (int i = 0; i < 6; ++i) {
    const RemoteValue value =
        coordinator.schedule(sum, {.worker = i % 2}, here, there, at::full({}, 100, at::kLong));
    EXPECT_EQ(number_of(value), 110 + 2 * (i % 2));
  }
  EXPECT_EQ(coordinator.statistics().traces, 1U);
}

TEST_F(ScheduleOptionsTest, AWorkerThatReturnsMakesItsValueAgain) {
  const PerWorkerValue own = coordinator.create_per_worker_value(
      Function([](at::Tensor worker) { return worker.add(5); }));
  const Function get([](at::Tensor value) { return value; });
  EXPECT_EQ(number_of(coordinator.schedule(get, {.worker = 1}, own)), 6);
  cluster.kill("worker:1");
  cluster.restart("worker:1");
  EXPECT_EQ(number_of(coordinator.schedule(get, {.worker = 1}, own)), 6);
}

TEST_F(ScheduleOptionsTest, AValueThatCannotBeMadeIsAnErrorHere) {
  const Function bad([](at::Tensor worker) {
    check_finite(worker.to(at::kDouble).div(worker.sub(worker)), "quotient");
    return worker;
  });
  EXPECT_THAT([&] { coordinator.create_per_worker_value(bad); },
              throws_error(ErrorCode::invalid_argument, "quotient"));
}

TEST_F(ScheduleOptionsTest, AnEpochTakesAPerWorkerValue) {
  const PerWorkerValue own = coordinator.create_per_worker_value(
      Function([](at::Tensor worker) { return worker.mul(0).add(3); }));
  const Function step(
      [](Iterator& it, at::Tensor value) { return it.next<at::Tensor>().add(value); });
  const EpochResult result = coordinator.run_epoch(step, Dataset::range(4), own);
  EXPECT_EQ(result.sum.tensor().item<std::int64_t>(), 0 + 1 + 2 + 3 + 4 * 3);
}

TEST(EagerSchedule, PassesPerWorkerValues) {
  TestCluster cluster{{.workers = 2, .ps = 1, .command = {COHORT_COMMAND, "server"}}};
  ParameterServerStrategy strategy{cluster.resolver()};
  ClusterCoordinator coordinator{strategy, {.run_eagerly = true}};
  const PerWorkerValue own = coordinator.create_per_worker_value(
      Function([](at::Tensor worker) { return worker.add(5); }));
  const Function get([](at::Tensor value) { return value.add(current_worker_index()); });
  const RemoteValue value = coordinator.schedule(get, {.worker = 1}, own);
  EXPECT_EQ(value.fetch().tensor().item<std::int64_t>(), 7);
}

TEST_F(ScheduleOptionsTest, ManyAreScheduledAtOnce) {
  const Function square([](at::Tensor x) { return x.mul(x); });
  std::vector<std::vector<Nest>> calls;
  for (std::int64_t i = 0; i < 500; ++i) calls.push_back({at::full({}, i, at::kLong)});
  const std::vector<RemoteValue> values = coordinator.schedule_many(square, calls);
  ASSERT_EQ(values.size(), calls.size());
  for (std::int64_t i = 0; i < 500; ++i)
    EXPECT_EQ(number_of(values[static_cast<std::size_t>(i)]), i * i);
  EXPECT_TRUE(coordinator.schedule_many(square, {}).empty());
  const Function index([] { return current_worker_index(); });
  for (const RemoteValue& value : coordinator.schedule_many(index, {{}, {}, {}}, {.worker = 1}))
    EXPECT_EQ(number_of(value), 1);
  EXPECT_EQ(coordinator.statistics().traces, 2U);
}

TEST_F(ScheduleOptionsTest, OfManyAllAreScheduledOrNone) {
  const Function square([](at::Tensor x) { return x.mul(x); });
  EXPECT_THAT(
      [&] {
        coordinator.schedule_many(square, {{at::ones({})}, {}});
      },
      throws_error(ErrorCode::invalid_argument, "takes 1 arguments, got 0"));
  coordinator.join();
  for (const std::uint64_t closures : coordinator.statistics().closures) EXPECT_EQ(closures, 0U);
}

// A worker that waits for a flag.
class DeadlineTest : public ScheduleOptionsTest {
 protected:
  void TearDown() override { open(); }
  void open() { flag.assign(1); }
  // Both workers wait for the flag.
  void hold_workers() {
    for (int worker = 0; worker < 2; ++worker) coordinator.schedule(wait, {.worker = worker});
    await_begun(2);
  }
  void await_begun(float count) {
    const Deadline deadline = Deadline::after(std::chrono::minutes(1));
    while (begun.read().item<float>() < count && !deadline.has_expired()) std::this_thread::yield();
    ASSERT_EQ(begun.read().item<float>(), count);
  }

  const Variable flag = strategy.variable("flag", at::zeros({}), {.is_trainable = false});
  const Variable begun = strategy.variable("begun", at::zeros({}), {.is_trainable = false});
  const Function wait{[this] {
                        begun.assign_add(1);
                        flag.wait_until_positive();
                        return current_worker_index();
                      },
                      {.name = "wait"}};
  const Function index{[] { return current_worker_index(); }};
};

TEST_F(DeadlineTest, AClosureThatRunsTooLongIsCancelledAndTheOthersGoOn) {
  const RemoteValue late =
      coordinator.schedule(wait, {.worker = 1, .deadline = std::chrono::milliseconds(300)});
  std::vector<RemoteValue> others;
  for (int i = 0; i < 20; ++i) others.push_back(coordinator.schedule(index, {.worker = i % 2}));
  EXPECT_THAT([&] { late.fetch(); },
              throws_error(ErrorCode::deadline_exceeded, "'wait' to end within 0.3 s"));
  for (int i = 0; i < 20; ++i) EXPECT_EQ(number_of(others[static_cast<std::size_t>(i)]), i % 2);
  EXPECT_THAT([&] { coordinator.join(); },
              throws_error(ErrorCode::deadline_exceeded, "runs on worker:1"));
  coordinator.join();
  EXPECT_EQ(flag.read().item<float>(), 0) << "it was cancelled";
}

TEST_F(DeadlineTest, AClosureThatWaitsTooLongLeavesTheQueue) {
  hold_workers();
  cluster.kill("worker:1");
  const RemoteValue late =
      coordinator.schedule(index, {.worker = 1, .deadline = std::chrono::milliseconds(50)});
  const RemoteValue other = coordinator.schedule(index, {.worker = 1});
  EXPECT_THAT([&] { late.fetch(); }, throws_error(ErrorCode::deadline_exceeded, "within 0.05 s"));
  EXPECT_FALSE(other.is_ready());
  EXPECT_FALSE(coordinator.done()) << "its error is thrown when all have ended";
  open();
  cluster.restart("worker:1");
  EXPECT_EQ(number_of(other), 1);
  EXPECT_THAT([&] { coordinator.join(); }, throws_error(ErrorCode::deadline_exceeded, "0.05 s"));
  coordinator.join();
}

TEST_F(DeadlineTest, AClosureThatEndsInTimeHasItsValue) {
  const Duration hour = std::chrono::hours(1);
  EXPECT_EQ(number_of(coordinator.schedule(index, {.worker = 0, .deadline = hour})), 0);
  EXPECT_EQ(number_of(coordinator.schedule(index, {.worker = 1, .deadline = Duration::max()})), 1);
  coordinator.join();
  EXPECT_THAT([&] { coordinator.schedule(index, {.deadline = Duration::zero()}); },
              throws_error(ErrorCode::invalid_argument, "ScheduleOptions::deadline above 0"));
}

// One closure at a time, so that the order is that of the queue.
TEST(SchedulePriority, DecidesWhichOfThoseThatWaitRunsFirst) {
  TestCluster cluster{{.workers = 1, .ps = 1, .command = {COHORT_COMMAND, "server"}}};
  ParameterServerStrategy strategy{cluster.resolver()};
  ClusterCoordinator coordinator{strategy, {.in_flight_per_worker = 1}};
  const Variable flag = strategy.variable("flag", at::zeros({}), {.is_trainable = false});
  const Variable order = strategy.variable("order", at::zeros({}), {.is_trainable = false});
  const Function wait([&] { flag.wait_until_positive(); });
  const Function note([&](at::Tensor digit) { order.assign(order.read() * 10 + digit); });
  coordinator.schedule(wait);
  const std::vector<std::pair<int, int>> digits = {{1, 0}, {2, -3}, {3, 7}, {4, 0}, {5, 7}};
  for (const auto& [digit, priority] : digits)
    coordinator.schedule(note, {.priority = priority}, at::full({}, double(digit), at::kFloat));
  flag.assign(1);
  coordinator.join();
  EXPECT_EQ(order.read().item<float>(), 35142);
}

// A worker that runs three closures at once.
class ClosuresAtOnceTest : public ::testing::Test {
 protected:
  TestCluster cluster{{.workers = 1, .ps = 2, .command = {COHORT_COMMAND, "server"}}};
  ParameterServerStrategy strategy{cluster.resolver()};
  ClusterCoordinator coordinator{strategy, {.closures_per_worker = 3}};
  const Variable count = strategy.variable("count", at::zeros({}), {.is_trainable = false});
};

TEST_F(ClosuresAtOnceTest, OneMayWaitForTheOthers) {
  const Function wait([&] { count.wait_until_positive(); });
  const Function open([&] { count.assign_add(1); });
  coordinator.schedule(wait);
  coordinator.schedule(wait);
  coordinator.schedule(open);
  coordinator.join();
  EXPECT_EQ(count.read().item<float>(), 1);
}

TEST_F(ClosuresAtOnceTest, DrawsHaveTheOrderOfTheClosures) {
  PerWorkerIterator elements =
      coordinator.create_per_worker_dataset(Dataset::range(300)).iterator();
  const Function step([&](Iterator& it, at::Tensor number) {
    count.assign_add(1);
    return Nest::list({it.next<at::Tensor>().sub(number), at::rand({2}), current_worker_index()});
  });
  std::vector<RemoteValue> values;
  for (std::int64_t i = 0; i < 300; ++i)
    values.push_back(coordinator.schedule(step, elements, at::full({}, i, at::kLong)));
  std::set<double> drawn;
  for (const RemoteValue& value : values) {
    const std::vector<Nest>& items = value.fetch().items();
    EXPECT_EQ(items[0].tensor().item<std::int64_t>(), 0);
    drawn.insert(items[1].tensor()[0].item<double>());
    EXPECT_EQ(items[2].tensor().item<std::int64_t>(), 0);
  }
  EXPECT_GE(drawn.size(), 295U) << "each closure has random numbers of its own";
  coordinator.join();
  EXPECT_EQ(count.read().item<float>(), 300);
}

TEST_F(ClosuresAtOnceTest, EpochsAndCancelledClosuresWork) {
  const Function step([&](Iterator& it) { return it.next<at::Tensor>(); });
  const EpochResult result = coordinator.run_epoch(step, Dataset::range(200));
  EXPECT_EQ(result.sum.tensor().item<std::int64_t>(), 199 * 100);
  const Function wait([&] { count.wait_until_positive(); });
  const Function bad([](at::Tensor x) { check_finite(x, "x"); });
  std::vector<RemoteValue> waiting = coordinator.schedule_many(wait, {{}, {}});
  coordinator.schedule(bad, at::full({}, std::numeric_limits<float>::infinity()));
  EXPECT_THAT([&] { coordinator.join(); }, throws_error(ErrorCode::invalid_argument, "'x'"));
  for (const RemoteValue& value : waiting)
    EXPECT_THAT([&] { value.fetch(); }, throws_error(ErrorCode::cancelled, ""));
}

TEST_F(ClosuresAtOnceTest, ALostWorkerRunsThemAgainOnce) {
  const Function add([&] { count.assign_add(1); });
  std::vector<std::vector<Nest>> calls(400);
  coordinator.schedule_many(add, calls);
  cluster.kill("worker:0");
  coordinator.schedule_many(add, calls);
  cluster.restart("worker:0");
  coordinator.join();
  EXPECT_EQ(count.read().item<float>(), 800);
}

// Regression: it threw failed_precondition.
TEST(EagerSchedule, WaitsForAVariable) {
  TestCluster cluster{{.workers = 1, .ps = 1, .command = {COHORT_COMMAND, "server"}}};
  ParameterServerStrategy strategy{cluster.resolver()};
  ClusterCoordinator coordinator{strategy, {.run_eagerly = true}};
  const Variable flag = strategy.variable("flag", at::zeros({}), {.is_trainable = false});
  const Variable begun = strategy.variable("begun", at::zeros({}), {.is_trainable = false});
  const Function step([&] {
    begun.assign(1);
    flag.wait_until_positive();
    return flag.read();
  });
  const std::jthread other([&] {
    const Deadline deadline = Deadline::after(std::chrono::minutes(1));
    while (begun.read().item<float>() == 0 && !deadline.has_expired()) std::this_thread::yield();
    flag.assign(7);
  });
  EXPECT_EQ(coordinator.schedule(step).fetch().tensor().item<float>(), 7);
}

TEST(EagerSchedule, DoesNotWaitForEver) {
  TestCluster cluster{{.workers = 1, .ps = 1, .command = {COHORT_COMMAND, "server"}}};
  ParameterServerStrategy strategy{cluster.resolver()};
  ClusterCoordinator coordinator{
      strategy, {.progress_timeout = std::chrono::milliseconds(20), .run_eagerly = true}};
  const Variable flag = strategy.variable("flag", at::zeros({}), {.is_trainable = false});
  const RemoteValue value = coordinator.schedule(Function([&] { flag.wait_until_positive(); }));
  EXPECT_THAT([&] { value.fetch(); }, throws_error(ErrorCode::deadline_exceeded, "'flag'"));
}

class StartDelayTest : public ::testing::Test {
 protected:
  static constexpr int kWorkers = 3;
  // The workers that have run a closure for any worker, and one for this worker.
  std::int64_t runs_on(ClusterCoordinator& coordinator) {
    return coordinator.schedule(index).fetch().tensor().item<std::int64_t>();
  }
  std::int64_t runs_on(ClusterCoordinator& coordinator, int worker) {
    return coordinator.schedule(index, {.worker = worker}).fetch().tensor().item<std::int64_t>();
  }

  TestCluster cluster{{.workers = kWorkers, .ps = 1, .command = {COHORT_COMMAND, "server"}}};
  ParameterServerStrategy strategy{cluster.resolver()};
  const Function index{[] { return current_worker_index(); }};
};

TEST_F(StartDelayTest, OnlyTheFirstWorkerStartsAtOnce) {
  ClusterCoordinator coordinator(strategy, {.start_delay = std::chrono::hours(1)});
  const RemoteValue late = coordinator.schedule(index, {.worker = kWorkers - 1});
  for (int i = 0; i < 20; ++i) EXPECT_EQ(runs_on(coordinator), 0);
  EXPECT_FALSE(late.is_ready());
  EXPECT_THAT([&] { late.fetch(Deadline::after(std::chrono::milliseconds(1))); },
              throws_error(ErrorCode::deadline_exceeded, "it starts 7200 s after"));
}

TEST_F(StartDelayTest, AllStartAndTheResultIsTheSame) {
  ClusterCoordinator coordinator(strategy, {.start_delay = std::chrono::milliseconds(20)});
  const Variable sum = strategy.variable("sum", at::zeros({}, at::kLong));
  const Function add([&](at::Tensor x) { sum.assign_add(x); });
  for (int i = 0; i < 100; ++i) coordinator.schedule(add, at::full({}, i, at::kLong));
  for (int i = kWorkers; i-- > 0;) EXPECT_EQ(runs_on(coordinator, i), i);
  EXPECT_TRUE(coordinator.join(std::chrono::seconds(60)));
  EXPECT_EQ(sum.read().item<std::int64_t>(), 4950);
}

TEST_F(StartDelayTest, AWorkerThatIsLostBeforeItsStartComesBack) {
  ClusterCoordinator coordinator(strategy, {.start_delay = std::chrono::milliseconds(300)});
  cluster.kill("worker:2");
  cluster.restart("worker:2");
  EXPECT_EQ(runs_on(coordinator, 2), 2);
}

}  // namespace
}  // namespace cohort
