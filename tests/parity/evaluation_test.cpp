// SPDX-License-Identifier: Apache-2.0
// An evaluation uses each row once, in eval mode and without gradients, on every strategy.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <thread>

#include "cohort/cohort.h"
#include "cohort/testing/cluster/test_cluster.h"
#include "cohort/testing/cpu_devices.h"
#include "cohort/testing/throws_error.h"

namespace cohort {
namespace {

using testing::TestCluster;
using testing::throws_error;

// Its result depends on the mode: in training mode dropout is random.
struct EvaluatedNetImpl : torch::nn::Module {
  EvaluatedNetImpl() {
    register_module("norm", norm);
    register_module("dropout", dropout);
    register_module("layer", layer);
  }
  at::Tensor forward(const at::Tensor& x) { return layer(dropout(norm(x))); }
  torch::nn::BatchNorm1d norm{4};
  torch::nn::Dropout dropout{0.5};
  torch::nn::Linear layer{4, 3};
};
TORCH_MODULE(EvaluatedNet);

// The inputs and labels of the rows with these numbers.
at::Tensor inputs_of(const at::Tensor& numbers) {
  return numbers.to(torch::kFloat).unsqueeze(1).mul(torch::arange(1, 5)).sin();
}
at::Tensor labels_of(const at::Tensor& numbers) { return numbers.mul(5).remainder(3); }

struct Measured {
  double loss, accuracy;
};

// A plain loop over the rows below `count`.
Measured measured_alone(EvaluatedNet net, std::int64_t count) {
  const torch::NoGradGuard no_grad;
  net->eval();
  const at::Tensor numbers = torch::arange(count), scores = net->forward(inputs_of(numbers));
  const at::Tensor losses = torch::nn::functional::cross_entropy(
      scores, labels_of(numbers),
      torch::nn::functional::CrossEntropyFuncOptions().reduction(torch::kNone));
  return {losses.to(torch::kDouble).mean().item<double>(),
          scores.argmax(1).eq(labels_of(numbers)).to(torch::kDouble).mean().item<double>()};
}

// The metrics of an evaluation, made in a strategy, and its step.
struct Measures {
  metrics::Mean loss{{.name = "loss"}};
  metrics::Accuracy accuracy;

  void update(const Replicated<EvaluatedNet>& net, const at::Tensor& numbers) const {
    EXPECT_FALSE(at::GradMode::is_enabled());
    const at::Tensor scores = net->forward(inputs_of(numbers)), labels = labels_of(numbers);
    loss.update(torch::nn::functional::cross_entropy(
        scores, labels, torch::nn::functional::CrossEntropyFuncOptions().reduction(torch::kNone)));
    accuracy.update({.labels = labels, .predictions = scores});
  }
  void expect(const Measured& expected, std::int64_t rows) const {
    EXPECT_EQ(accuracy.rows(), rows);
    EXPECT_EQ(accuracy.result(), expected.accuracy);
    EXPECT_NEAR(loss.result(), expected.loss, 1e-6) << "losses are float32";
  }
};
Measures measures_in(Strategy& strategy) {
  const auto scope = strategy.scope();
  return {.accuracy = metrics::Accuracy()};
}

class EvaluationOnReplicas : public ::testing::TestWithParam<bool> {
 protected:
  MirroredStrategy two{testing::cpu_devices(2)};
  Replicated<EvaluatedNet> net = two.replicate([] { return EvaluatedNet(); });
  Measures measures = measures_in(two);
  Evaluation evaluation_of(const DistributedDataset& data) {
    return Evaluation(two, [this](const at::Tensor& numbers) { measures.update(net, numbers); },
                      data,
                      {.metrics = {measures.loss, measures.accuracy}, .is_traced = GetParam()});
  }
};

TEST_P(EvaluationOnReplicas, HasTheNumbersOfAPlainLoop) {
  const Evaluation evaluation =
      evaluation_of(two.distribute_dataset(Dataset::range(103).batch(10)));
  EXPECT_EQ(evaluation.run(), 11U);
  measures.expect(measured_alone(net.snapshot(), 103), 103);
  // Trains one step; the modes of the module are those of training again.
  const SGD sgd(net.parameters(), {.learning_rate = 1});
  two.run([&] {
    EXPECT_TRUE(net->is_training());
    EXPECT_TRUE(net->dropout->is_training());
    const at::Tensor numbers = torch::arange(8);
    sgd.minimize(torch::cross_entropy_loss(net->forward(inputs_of(numbers)), labels_of(numbers)));
  });
  evaluation.run();
  measures.expect(measured_alone(net.snapshot(), 103), 103);
}

// Only one replica has data in the last step, which try_next() leaves out.
TEST_P(EvaluationOnReplicas, ALastStepOfSomeReplicasCounts) {
  const DistributedDataset data = two.distribute_datasets_from_function(
      [](const InputContext&) { return Dataset::range(9).batch(3, {.drop_remainder = true}); });
  EXPECT_EQ(evaluation_of(data).run(), 2U);
  measures.expect(measured_alone(net.snapshot(), 9), 9);
}

INSTANTIATE_TEST_SUITE_P(RunAndFunction, EvaluationOnReplicas, ::testing::Bool());

TEST(Evaluation, TrainInTheStepStaysInEffect) {
  MirroredStrategy one(testing::cpu_devices(1));
  const auto net = one.replicate([] { return EvaluatedNet(); });
  const Evaluation evaluation(
      one,
      [&](const at::Tensor&) {
        EXPECT_FALSE(net->is_training());
        EXPECT_FALSE(net->norm->is_training());
        net->dropout->train();
        EXPECT_TRUE(net->dropout->is_training());
        EXPECT_FALSE(net->norm->is_training());
      },
      one.distribute_dataset(Dataset::range(4).batch(2)));
  EXPECT_EQ(evaluation.run(), 2U);
  one.run([&] { EXPECT_TRUE(net->is_training()); });
}

TEST(Evaluation, OneDeviceOrNoStrategyIsEnough) {
  OneDeviceStrategy device;
  for (Strategy* strategy : std::vector<Strategy*>{&device, &default_strategy()}) {
    const Measures measures = measures_in(*strategy);
    EvaluatedNet net;
    net->eval();
    const Evaluation evaluation(
        *strategy,
        [&](const at::Tensor& numbers) {
          measures.accuracy.update(
              {.labels = labels_of(numbers), .predictions = net->forward(inputs_of(numbers))});
        },
        strategy->distribute_dataset(Dataset::range(23).batch(5)),
        {.metrics = {measures.accuracy}});
    EXPECT_EQ(evaluation.run(), 5U);
    EXPECT_EQ(measures.accuracy.rows(), 23);
    EXPECT_EQ(measures.accuracy.result(), measured_alone(net, 23).accuracy);
  }
}

TEST(Evaluation, WorkersMayHaveDifferentNumbersOfRowsOrNone) {
  constexpr int kWorkers = 3;
  const InProcessWorkers workers(kWorkers);
  const std::vector<std::int64_t> bounds = {0, 7, 7, 40};
  std::vector<std::thread> threads;
  for (int worker = 0; worker < kWorkers; ++worker) {
    threads.emplace_back([&, worker] {
      MultiWorkerMirroredStrategy strategy(workers.group(worker));
      const auto net = strategy.replicate([] { return EvaluatedNet(); });
      const Measures measures = measures_in(strategy);
      const DistributedDataset data =
          strategy.distribute_datasets_from_function([&](const InputContext& input) {
            const auto i = static_cast<std::size_t>(input.input_pipeline_id);
            return Dataset::range(bounds[i + 1], {.start = bounds[i]}).batch(5);
          });
      const Evaluation evaluation(strategy,
                                  [&](const at::Tensor& numbers) { measures.update(net, numbers); },
                                  data, {.metrics = {measures.loss, measures.accuracy}});
      const Measured expected = measured_alone(net.snapshot(), 40);
      for (int pass = 0; pass < 2; ++pass) {
        EXPECT_EQ(evaluation.run(), 7U);
        measures.expect(expected, 40);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(Evaluation, OnParameterServersSeesAllUpdates) {
  TestCluster cluster({.workers = 2, .ps = 2, .command = {COHORT_COMMAND, "server"}});
  ParameterServerStrategy strategy(cluster.resolver());
  ClusterCoordinator coordinator(strategy);
  const auto net = strategy.replicate([] { return EvaluatedNet(); });
  const Measures measures = measures_in(strategy);
  const SGD sgd(net.parameters(), {.learning_rate = 0.5});
  const Function train([&](const at::Tensor& numbers) {
    sgd.minimize(torch::cross_entropy_loss(net->forward(inputs_of(numbers)), labels_of(numbers)));
  });
  int traces = 0;
  const Evaluation evaluation(coordinator,
                              [&](Iterator& rows) {
                                ++traces;
                                EXPECT_FALSE(net->is_training());
                                measures.update(net, rows.next<at::Tensor>());
                              },
                              Dataset::range(103).batch(10),
                              {.metrics = {measures.loss, measures.accuracy}});
  std::optional<int> traces_of_first;
  for (int pass = 0; pass < 2; ++pass) {
    for (int i = 0; i < 5; ++i) coordinator.schedule(train, torch::arange(i, i + 8));
    EXPECT_EQ(evaluation.run(), 11U);
    measures.expect(measured_alone(net.snapshot(), 103), 103);
    EXPECT_EQ(traces_of_first.value_or(traces), traces) << "it was traced again";
    traces_of_first = traces;
  }
}

TEST(Evaluation, AnErrorOfTheStepPasses) {
  MirroredStrategy two(testing::cpu_devices(2));
  const auto scope = two.scope();
  const metrics::Accuracy accuracy;
  const Evaluation evaluation(
      two,
      [&](const at::Tensor& numbers) {
        accuracy.update({.labels = numbers, .predictions = torch::zeros({numbers.size(0), 5})});
      },
      two.distribute_dataset(Dataset::range(7).batch(2)), {.metrics = {accuracy}});
  EXPECT_THAT([&] { evaluation.run(); },
              throws_error(ErrorCode::invalid_argument, "classes from 0 to 4, got 5"));
}

}  // namespace
}  // namespace cohort
