// SPDX-License-Identifier: Apache-2.0
// Per-worker values, and the options of schedule(), with standard servers in other processes.
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <set>
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

}  // namespace
}  // namespace cohort
