// SPDX-License-Identifier: Apache-2.0
// Variables with a copy for each worker, with standard servers in other processes.
#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "cohort/coordinator/cluster_coordinator.h"
#include "cohort/function/inspection.h"
#include "cohort/testing/cluster/test_cluster.h"
#include "cohort/testing/error_of.h"
#include "cohort/testing/throws_error.h"

namespace cohort {
namespace {

using ::testing::ElementsAre;
using testing::TestCluster;
using testing::throws_error;

std::vector<double> numbers_of(const std::vector<at::Tensor>& copies) {
  std::vector<double> numbers;
  for (const at::Tensor& copy : copies) numbers.push_back(copy.sum().item<double>());
  return numbers;
}

// Whether steps run on workers or in this process.
class PerWorkerVariableTest : public ::testing::TestWithParam<bool> {
 protected:
  TestCluster cluster{{.workers = 2, .ps = 2, .command = {COHORT_COMMAND, "server"}}};
  ParameterServerStrategy strategy{cluster.resolver(), {.partitioner = [](const TensorSpec& spec) {
                                     std::vector<std::int64_t> shards(spec.sizes->size(), 1);
                                     shards.at(0) = 2;
                                     return shards;
                                   }}};
  ClusterCoordinator coordinator{strategy, {.run_eagerly = GetParam()}};
};

TEST_P(PerWorkerVariableTest, EachWorkerUpdatesItsOwnCopy) {
  const PerWorkerVariable seen = strategy.per_worker_variable("seen", at::full({}, 100, at::kLong));
  const Function step([&](at::Tensor rows) { seen.assign_add(rows); });
  for (int i = 0; i < 6; ++i)
    coordinator.schedule(step, {.worker = i % 3 == 0 ? 1 : 0}, at::full({}, i, at::kLong));
  coordinator.join();
  EXPECT_THAT(numbers_of(seen.read_all()), ElementsAre(100 + 1 + 2 + 4 + 5, 100 + 0 + 3));
  EXPECT_EQ(seen.read().item<std::int64_t>(), 100);
}

TEST_P(PerWorkerVariableTest, TheCoordinatorHasACopyToo) {
  const PerWorkerVariable own = strategy.per_worker_variable("own", at::zeros({2, 3}));
  own.assign(at::ones({2, 3}));
  own.assign_sub(at::full({2, 3}, 0.5));
  strategy.run([&] { own.assign_add(own.read()); });
  EXPECT_TRUE(own.read().equal(at::ones({2, 3})));
  EXPECT_THAT(numbers_of(own.read_all()), ElementsAre(0, 0));
  EXPECT_EQ(own.spec().to_string(), "float32[2, 3]");
}

TEST_P(PerWorkerVariableTest, AStepReadsWhatItHasAssigned) {
  const PerWorkerVariable last = strategy.per_worker_variable("last", at::zeros({3}));
  const Function step([&](at::Tensor x) {
    const at::Tensor before = last.read();
    last.assign(x);
    last.assign_sub(at::ones({3}));
    return before + last.read() * 10;
  });
  for (const int worker : {1, 0}) {
    const auto run = [&](double x) {
      return coordinator.schedule(step, {.worker = worker}, at::full({3}, x)).fetch().tensor();
    };
    EXPECT_TRUE(run(3).equal(at::full({3}, 20.0))) << worker;
    EXPECT_TRUE(run(5).equal(at::full({3}, 42.0))) << worker;
  }
}

TEST_P(PerWorkerVariableTest, NumbersAndOtherTypesAreAssigned) {
  const PerWorkerVariable count = strategy.per_worker_variable("count", at::zeros({}, at::kInt));
  const PerWorkerVariable flag = strategy.per_worker_variable("flag", at::zeros({}, at::kBool));
  const Function step([&] {
    count.assign_add(3);
    flag.assign(true);
    return flag.read();
  });
  EXPECT_TRUE(coordinator.schedule(step, {.worker = 1}).fetch().tensor().item<bool>());
  EXPECT_THAT(numbers_of(count.read_all()), ElementsAre(0, 3));
  EXPECT_THAT([&] { count.assign(0.5); }, throws_error(ErrorCode::invalid_argument, "'count'"));
}

TEST_P(PerWorkerVariableTest, RefusesWhatCannotBeRight) {
  const PerWorkerVariable own = strategy.per_worker_variable("own", at::zeros({2}));
  EXPECT_THAT([&] { own.assign(at::zeros({3})); },
              throws_error(ErrorCode::invalid_argument,
                           "expected float32[2], got float32[3] (variable 'own')"));
  EXPECT_THAT([&] { strategy.per_worker_variable("own", at::zeros({2})); },
              throws_error(ErrorCode::already_exists, "own"));
  EXPECT_THAT([] { PerWorkerVariable(local_variable("w", at::zeros({}), false)); },
              throws_error(ErrorCode::invalid_argument, "per_worker_variable()"));
  const auto error_of = [&](const Function& step) {
    return testing::error_of([&] { coordinator.schedule(step).fetch(); });
  };
  const Error in_step = error_of(Function([&] { return own.read_all().front(); }));
  EXPECT_EQ(in_step.code(), ErrorCode::failed_precondition) << in_step.what();
  EXPECT_THROW(coordinator.join(); throw in_step, Error);
  const Error made =
      error_of(Function([&] { return strategy.per_worker_variable("new", at::zeros({})).read(); }));
  EXPECT_EQ(made.code(), ErrorCode::failed_precondition) << made.what();
}

std::string name_of(const ::testing::TestParamInfo<bool>& info) {
  return info.param ? "InThisProcess" : "OnWorkers";
}
INSTANTIATE_TEST_SUITE_P(, PerWorkerVariableTest, ::testing::Bool(), name_of);

TEST(PerWorkerVariableOfALostWorker, StaysAsItWas) {
  TestCluster cluster{{.workers = 2, .ps = 1, .command = {COHORT_COMMAND, "server"}}};
  ParameterServerStrategy strategy{cluster.resolver()};
  ClusterCoordinator coordinator{strategy};
  const PerWorkerVariable count = strategy.per_worker_variable("count", at::zeros({}));
  const Function step([&] { count.assign_add(1); });
  for (int i = 0; i < 500; ++i) coordinator.schedule(step);
  coordinator.schedule(step, {.worker = 1}).fetch();
  cluster.kill("worker:1");
  for (int i = 0; i < 499; ++i) coordinator.schedule(step);
  cluster.restart("worker:1");
  coordinator.join();
  const std::vector<double> before = numbers_of(count.read_all());
  EXPECT_EQ(before.at(0) + before.at(1), 1000);
  EXPECT_GE(before.at(1), 1);
  coordinator.schedule(step, {.worker = 1}).fetch();
  EXPECT_THAT(numbers_of(count.read_all()), ElementsAre(before[0], before[1] + 1));
}

}  // namespace
}  // namespace cohort
