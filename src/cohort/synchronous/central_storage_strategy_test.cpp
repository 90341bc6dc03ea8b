// SPDX-License-Identifier: Apache-2.0
// CentralStorageStrategy: all replicas share one value of each variable.
#include <ATen/TensorOperators.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include <string>
#include <vector>

#include "cohort/optimizer/optimizers.h"
#include "cohort/strategy/strategy_extended.h"
#include "cohort/synchronous/mirrored/variable_fixture.h"
#include "cohort/testing/cpu_devices.h"
#include "cohort/testing/throws_error.h"

namespace cohort {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using testing::throws_error;

using CentralStorage = testing::TwoReplicas<CentralStorageStrategy>;

// CTX-071
TEST_F(CentralStorage, HasOneParameterDevice) {
  EXPECT_EQ(two_.name(), "central_storage");
  EXPECT_EQ(two_.num_replicas_in_sync(), 2);
  EXPECT_THAT(two_.worker_devices(), ElementsAre("CPU:0", "CPU:1"));
  EXPECT_THAT(two_.parameter_devices(), ElementsAre("CPU:0"));
  EXPECT_THAT(CentralStorageStrategy({"CPU:3"}).parameter_devices(), ElementsAre("CPU:3"));
  EXPECT_THAT(CentralStorageStrategy(testing::cpu_devices(2), "cpu:5").parameter_devices(),
              ElementsAre("CPU:5"));
  EXPECT_THAT([&] { CentralStorageStrategy(testing::cpu_devices(2), "/job:ps/task:0"); },
              throws_error(ErrorCode::invalid_argument, "devices of this process"));
  EXPECT_THAT(
      [&] {
        CentralStorageStrategy({"CPU:0", "CPU:0"});
      },
      throws_error(ErrorCode::invalid_argument, "twice"));
  EXPECT_EQ(two_.extended().devices(make(1)), std::vector<std::string>{"CPU:0"});
}

TEST_F(CentralStorage, DevicesThatAreNotThereAreRefused) {
  const auto refused = throws_error(ErrorCode::invalid_argument,
                                    "[strategy.central_storage] expected devices that this process "
                                    "has, got GPU:77");
  EXPECT_THAT([] { CentralStorageStrategy(std::vector<std::string>{"GPU:77"}); }, refused);
  EXPECT_THAT([] { CentralStorageStrategy({"CPU:0", "GPU:77"}); }, refused);
  EXPECT_THAT([] { CentralStorageStrategy(testing::cpu_devices(2), "GPU:77"); }, refused);
}

TEST_F(CentralStorage, EachReplicaHasALeafOfItsOwnForTheOneValue) {
  const Variable v = make(3);
  two_.run([&] {
    EXPECT_TRUE(v.tensor().is_leaf());
    (v.tensor() * (id() + 1)).backward();
    EXPECT_EQ(number(v.tensor().grad()), id() + 1);
  });
  v.assign(5);
  two_.run([&] { EXPECT_EQ(number(v.tensor()), 5); });
  EXPECT_EQ(components(v), std::vector<double>{5});
}

// VAR-075
TEST_F(CentralStorage, ReplicasAssignTogetherOnce) {
  const Variable sum = make(10, Aggregation::sum), mean = make(10, Aggregation::mean);
  const Variable first = make(10, Aggregation::only_first_replica);
  two_.run([&] {
    for (const Variable& v : {sum, mean, first}) v.assign_add(scalar(id() + 1));
    EXPECT_EQ(number(sum.tensor()), 13);
    EXPECT_EQ(number(mean.read()), 11.5);
  });
  EXPECT_EQ(number(first.read()), 11);
  EXPECT_THAT([&] { two_.run([&] { sum.assign(5); }); },
              throws_error(ErrorCode::invalid_argument, "the same in all"));
  two_.run([&] { mean.assign(5); });
  EXPECT_EQ(number(mean.read()), 5);
}

TEST_F(CentralStorage, ReplicasNeedAnAggregation) {
  const Variable none = make(1);
  EXPECT_THAT([&] { two_.run([&] { none.assign(scalar(id())); }); },
              throws_error(ErrorCode::invalid_argument, "share one value, got none; make it with"));
  EXPECT_THAT([&] { two_.run([&] { none.assign_add(1); }); },
              throws_error(ErrorCode::invalid_argument, "share one value"));
  EXPECT_EQ(number(none.read()), 1);
  none.assign(2);
  two_.extended().update(none, [](const Variable& v) { v.assign_add(1); });
  EXPECT_EQ(number(none.read()), 3);
}

// Regression: replicas wrote at the same time, with other results from run to run.
TEST_F(CentralStorage, WritesInPlaceIntoASharedValueAreRefused) {
  for (const bool is_trainable : {false, true}) {
    const Variable v =
        two_.variable(is_trainable ? "w" : "buffer", at::ones({2}), {.is_trainable = is_trainable});
    const auto step = [&] {
      const at::NoGradGuard no_grad;
      v.tensor().mul_(2);
      return v.read();
    };
    const auto refused =
        throws_error(ErrorCode::invalid_argument, "writes in place into its tensor");
    EXPECT_THAT([&] { two_.run(step); }, refused);
    EXPECT_THAT([&] { two_.function(step)(); }, refused);
  }
}

TEST_F(CentralStorage, WhatIsWrittenInPlaceBetweenRunsStays) {
  const Variable v = two_.variable("v", at::ones({}), {.is_trainable = false});
  v.tensor().add_(1);
  two_.run([&] { EXPECT_EQ(v.read().item<float>(), 2); });
  EXPECT_EQ(v.read().item<float>(), 2);
}

TEST_F(CentralStorage, SynchronizationOnReadIsOfNoEffect) {
  const Variable v =
      two_.variable("v", scalar(1),
                    {.synchronization = Synchronization::on_read, .aggregation = Aggregation::sum});
  EXPECT_EQ(v.synchronization(), Synchronization::on_read);
  EXPECT_FALSE(v.is_trainable());
  v.assign_add(1);
  two_.run([&] { v.assign_add(scalar(id() + 1)); });
  EXPECT_EQ(number(v.read()), 5);
}

TEST_F(CentralStorage, RowsOfAllReplicasAreAppliedOnce) {
  const Variable v = two_.variable("v", row({1, 1, 1}), {.aggregation = Aggregation::mean});
  two_.run([&] { v.scatter_add(index({static_cast<std::int64_t>(id()), 2}), row({2, 4})); });
  EXPECT_THAT(numbers(v.read()), ElementsAre(2, 2, 5));
  EXPECT_EQ(code_of([&] { v.scatter_update(index({0}), row({1})); }), ErrorCode::unimplemented);
  const Variable none = two_.variable("none", row({1}));
  EXPECT_THAT([&] { two_.run([&] { none.scatter_add(index({0}), row({1})); }); },
              throws_error(ErrorCode::invalid_argument, "[variable.scatter_add] expected an aggr"));
}

TEST_F(CentralStorage, MinimizeUpdatesTheValueAndItsSlotsOnce) {
  const Variable w = make(1), expected = local_variable("w", scalar(1));
  const SGD shared({w}, {.learning_rate = 0.5, .momentum = 0.9});
  const SGD one({expected}, {.learning_rate = 0.5, .momentum = 0.9});
  const PerReplica<at::Tensor> x({scalar(1), scalar(3)});
  for (int step = 0; step < 5; ++step) {
    two_.run(
        [&](const at::Tensor& part) {
          const double before = number(w.tensor());
          shared.minimize(w.tensor().square() * part);
          EXPECT_NE(number(w.tensor()), before) << "the replica sees the update";
        },
        x);
    one.minimize(expected.tensor().square() * 4);
    EXPECT_NEAR(number(w.read()), number(expected.read()), 1e-12);
  }
  EXPECT_EQ(shared.iterations(), 5);
}

TEST_F(CentralStorage, AGradientOfOneReplicaOnlyIsApplied) {
  const Variable a = make(1), b = make(1), c = make(1);
  const SGD sgd({a, b, c}, {.learning_rate = 1});
  two_.run([&] {
    at::Tensor loss = a.tensor() * 2;
    if (id() == 1) loss = loss + b.tensor() * 3;
    sgd.minimize(loss);
  });
  EXPECT_EQ(number(a.read()), 1 - 4);
  EXPECT_EQ(number(b.read()), 1 - 3);
  EXPECT_EQ(number(c.read()), 1);
}

TEST_F(CentralStorage, AutogradDetectsAnUpdateThroughAnotherReplicasLeaf) {
  const Variable w = make(2);
  two_.run([&] {
    const at::Tensor loss = w.tensor().square();
    get_replica_context()->merge_call([&](Strategy&) { w.assign(5); });
    EXPECT_THROW(loss.backward(), c10::Error);
  });
}

torch::nn::Sequential make_model() {
  return torch::nn::Sequential(torch::nn::Linear(3, 4), torch::nn::BatchNorm1d(4),
                               torch::nn::Linear(4, 1));
}

TEST_F(CentralStorage, ModulesShareTheirParametersAndKeepTheirBuffers) {
  const auto model = two_.replicate(make_model);
  const SGD sgd(model.parameters(), {.learning_rate = 0.1});
  for (int step = 0; step < 3; ++step) {
    two_.run([&] {
      const at::Tensor x = at::full({4, 3}, id() + 1.0).add(at::tensor({1.F, 2.F, 4.F}));
      sgd.minimize(model->forward(x).square().mean() / 2);
    });
  }
  const auto pointers = two_.run([&] {
    std::vector<at::Tensor> tensors;
    for (const at::Tensor& tensor : model->parameters()) tensors.push_back(tensor);
    for (const at::Tensor& tensor : model->buffers()) tensors.push_back(tensor);
    return tensors;
  });
  const std::vector<at::Tensor>&first = pointers[0], second = pointers[1];
  const std::size_t parameters = model.parameters().size();
  ASSERT_EQ(first.size(), second.size());
  for (std::size_t i = 0; i < first.size(); ++i) {
    EXPECT_FALSE(first[i].is_same(second[i]));
    EXPECT_EQ(first[i].is_alias_of(second[i]), i < parameters) << i;
  }
  EXPECT_TRUE(model.parameters()[0].read().equal(first[0]));
  const auto copy = model.snapshot();
  EXPECT_TRUE(copy->parameters()[0].equal(first[0].detach()));
  copy->parameters()[0].detach().fill_(7);
  model.load(copy);
  EXPECT_EQ(second[0].detach()[0][0].item<double>(), 7);
}

TEST_F(CentralStorage, ModulesTrainAsOnOneDevice) {
  const auto factory = [] {
    torch::nn::Linear linear(3, 2);
    linear->to(at::kDouble);
    return linear;
  };
  OneDeviceStrategy one("CPU:0");
  const auto shared = two_.replicate(factory), whole = one.replicate(factory);
  const Adam adam(shared.parameters()), expected(whole.parameters());
  for (int step = 0; step < 5; ++step) {
    const at::Tensor x = at::full({6, 3}, 0.5 * step + 1, at::TensorOptions(at::kDouble));
    const PerReplica<at::Tensor> parts({x.slice(0, 0, 2), x.slice(0, 2, 6)});
    two_.run(
        [&](const at::Tensor& part) { adam.minimize(shared->forward(part).square().sum() / 6); },
        parts);
    one.run([&] { expected.minimize(whole->forward(x).square().sum() / 6); });
    for (std::size_t i = 0; i < 2; ++i) {
      const at::Tensor difference = shared.variables()[i].read() - whole.variables()[i].read();
      EXPECT_LT(difference.abs().max().item<double>(), 1e-12);
    }
  }
}

// VAR-078
TEST_F(CentralStorage, OfOneReplicaVariablesArePlain) {
  CentralStorageStrategy one(testing::cpu_devices(1));
  const Variable sum = one.variable("sum", scalar(1), {.aggregation = Aggregation::sum});
  const Variable none = one.variable("none", scalar(1));
  one.run([&] {
    sum.assign_add(scalar(2));
    none.assign(4);
  });
  EXPECT_EQ(number(sum.read()), 3);
  EXPECT_EQ(number(none.read()), 4);
}

TEST_F(CentralStorage, ReducesAndGathersValues) {
  const PerReplica<at::Tensor> x({row({1}), row({2.5})});
  EXPECT_EQ(number(two_.reduce(ReduceOp::sum, x)), 3.5);
  EXPECT_THAT(numbers(two_.gather(x, 0)), ElementsAre(1, 2.5));
}

// 4.6: one pipeline, whose global batches are split.
TEST_F(CentralStorage, DistributesDatasetsAsMirroredStrategyDoes) {
  MirroredStrategy mirrored(testing::cpu_devices(2));
  const auto parts_of = [](Strategy& strategy) {
    std::vector<std::vector<double>> all;
    for (const DistributedElement& batch :
         strategy.distribute_dataset(Dataset::range(7).batch(4))) {
      const auto parts = strategy.run([](const at::Tensor& x) { return x + id(); }, batch);
      for (const at::Tensor& part : parts.local_results()) all.push_back(numbers(part));
    }
    return all;
  };
  EXPECT_THAT(parts_of(two_),
              ElementsAre(ElementsAre(0, 1), ElementsAre(3, 4), ElementsAre(4, 5), ElementsAre(7)));
  EXPECT_EQ(parts_of(mirrored), parts_of(two_));
}

TEST_F(CentralStorage, CallsADatasetFunctionOnceForAllReplicas) {
  int calls = 0;
  const DatasetFunction fn = [&](const InputContext& context) {
    ++calls;
    EXPECT_EQ(context.num_input_pipelines, 1);
    EXPECT_EQ(context.input_pipeline_id, 0);
    EXPECT_EQ(context.num_replicas_in_sync, 2);
    return Dataset::range(4).batch(2);
  };
  const auto batch = two_.distribute_datasets_from_function(fn).iterator().get_next();
  EXPECT_EQ(calls, 1);
  EXPECT_THAT(numbers(batch[0].tensor()), ElementsAre(0, 1));
  EXPECT_THAT(numbers(batch[1].tensor()), ElementsAre(2, 3));
  const InputOptions per_replica{.fetch_to_device = false,
                                 .replication_mode = ReplicationMode::per_replica};
  EXPECT_THAT([&] { two_.distribute_datasets_from_function(fn, per_replica); },
              ::testing::Throws<Error>(
                  ::testing::Property("code", &Error::code, ErrorCode::unimplemented)));
}

// CTX-073
TEST(LogicalCpuDevicesTest, AreThoseOfAMirroredStrategyWithoutAList) {
  EXPECT_THAT([&] { set_logical_cpu_devices(0); },
              throws_error(ErrorCode::invalid_argument, "expected a number > 0, got 0"));
  set_logical_cpu_devices(3);
  const MirroredStrategy mirrored;
  const CentralStorageStrategy central;
  set_logical_cpu_devices(1);
  if (mirrored.devices().front().type == "GPU") GTEST_SKIP() << "this host has GPUs";
  EXPECT_THAT(mirrored.worker_devices(), ElementsAre("CPU:0", "CPU:1", "CPU:2"));
  EXPECT_THAT(central.worker_devices(), ElementsAre("CPU:0"));
  EXPECT_THAT(MirroredStrategy().worker_devices(), ElementsAre("CPU:0"));
}

}  // namespace
}  // namespace cohort
