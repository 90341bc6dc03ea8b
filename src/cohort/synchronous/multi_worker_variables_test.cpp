// SPDX-License-Identifier: Apache-2.0
// Variables of several workers have the values of MirroredStrategy with all their replicas.
#include <ATen/core/TensorBody.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "cohort/synchronous/workers/workers_fixture.h"

namespace cohort {
namespace {

using testing::run_workers;
using testing::text_of;

using TensorList = std::vector<at::Tensor>;
using Use = std::function<TensorList(SynchronousStrategy&)>;

void expect_values_of_one_process(const Use& use) {
  for (const int replicas : {1, 2}) {
    MirroredStrategy one(testing::cpu_devices(2 * replicas));
    const TensorList expected = use(one);
    const auto errors = run_workers(2, {.replicas = replicas}, [&](auto& strategy) {
      const TensorList got = use(strategy);
      ASSERT_EQ(got.size(), expected.size());
      for (std::size_t i = 0; i < got.size(); ++i)
        EXPECT_TRUE(got[i].equal(expected[i])) << i << ": " << got[i] << " and " << expected[i];
    });
    for (const auto& error : errors) EXPECT_EQ(text_of(error), "");
  }
}

double id() { return get_replica_context()->replica_id_in_sync_group(); }

TEST(MultiWorkerVariables, CombineWhatReplicasAssign) {
  using enum VariableAggregation;
  expect_values_of_one_process([](SynchronousStrategy& strategy) {
    TensorList values;
    for (const auto aggregation : {sum, mean, only_first_replica}) {
      const Variable v = strategy.variable("v" + std::to_string(values.size()), at::ones({2}),
                                           {.aggregation = aggregation});
      strategy.run([&] { v.assign_add(at::full({2}, 0.1 * id() + 1)); });
      values.push_back(v.read());
      strategy.run([&] { v.assign_sub(at::full({2}, 0.3 * id() + 1)); });
      values.push_back(v.read());
    }
    return values;
  });
}

TEST(MultiWorkerVariables, TakeANumberThatAllReplicasAssignOnce) {
  expect_values_of_one_process([](SynchronousStrategy& strategy) {
    const Variable v =
        strategy.variable("v", at::ones({}), {.aggregation = VariableAggregation::mean});
    strategy.run([&] { v.assign_add(2.0); });
    return TensorList{v.read()};
  });
}

TEST(MultiWorkerVariables, CombineRowsOfReplicas) {
  expect_values_of_one_process([](SynchronousStrategy& strategy) {
    TensorList values;
    for (const auto aggregation : {VariableAggregation::sum, VariableAggregation::mean}) {
      const Variable v = strategy.variable("v" + std::to_string(values.size()), at::ones({5, 2}),
                                           {.aggregation = aggregation});
      strategy.run([&] {
        const auto row = static_cast<std::int64_t>(id());
        v.scatter_add(at::tensor({row, std::int64_t{4}}), at::full({2, 2}, 0.1 * id() + 1));
      });
      values.push_back(v.read());
    }
    return values;
  });
}

TEST(MultiWorkerVariables, ThatAreSynchronizedOnReadAreThoseOfAllReplicas) {
  using enum VariableAggregation;
  expect_values_of_one_process([](SynchronousStrategy& strategy) {
    TensorList values;
    for (const auto aggregation : {sum, mean, only_first_replica}) {
      const Variable v = strategy.variable(
          "v" + std::to_string(values.size()), at::zeros({2}),
          {.synchronization = VariableSynchronization::on_read, .aggregation = aggregation});
      strategy.run([&] { v.assign_add(at::full({2}, 0.1 * id() + 1)); });
      values.push_back(v.read());
      v.assign(at::full({2}, 7.0));
      values.push_back(v.read());
      strategy.run([&] {
        v.assign_add(at::full({2}, id()));
        const SyncOnReadScope together;
        EXPECT_TRUE(v.tensor().defined());
      });
      values.push_back(v.read());
    }
    return values;
  });
}

TEST(MultiWorkerVariables, OfIntegersKeepWhatADivisionLeavesOver) {
  expect_values_of_one_process([](SynchronousStrategy& strategy) {
    const Variable v = strategy.variable("v", at::zeros({}, at::kLong),
                                         {.synchronization = VariableSynchronization::on_read,
                                          .aggregation = VariableAggregation::sum});
    v.assign(at::full({}, 7, at::kLong));
    return TensorList{v.read()};
  });
}

TEST(MultiWorkerVariables, HaveAComponentForEachReplicaOfTheWorker) {
  for (const int replicas : {1, 2}) {
    const auto errors = run_workers(2, {.replicas = replicas}, [&](auto& strategy) {
      const Variable v =
          strategy.variable("v", at::zeros({}), {.aggregation = VariableAggregation::sum});
      const std::vector<Variable> components = strategy.local_results(v);
      ASSERT_EQ(components.size(), static_cast<std::size_t>(replicas));
      EXPECT_EQ(components[0].name(), "v");
      strategy.run([&] {
        // Alone, without the other workers.
        if (strategy.worker() == 1) components[0].assign_add(at::ones({}));
      });
      EXPECT_EQ(components[0].read().template item<double>(), strategy.worker() * replicas);
    });
    for (const auto& error : errors) EXPECT_EQ(text_of(error), "");
  }
}

TEST(MultiWorkerVariables, AreMadeInReplicasToo) {
  expect_values_of_one_process([](SynchronousStrategy& strategy) {
    std::vector<std::optional<Variable>> made(
        static_cast<std::size_t>(strategy.num_replicas_in_sync()));
    strategy.run([&] {
      made[static_cast<std::size_t>(id())] =
          get_replica_context()->strategy().variable("v", at::full({2}, id() + 3));
    });
    for (const auto& v : made) {
      if (v) return TensorList{v->read()};
    }
    return TensorList{};
  });
}

}  // namespace
}  // namespace cohort
