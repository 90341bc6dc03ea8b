// SPDX-License-Identifier: Apache-2.0
// An Estimator whose steps run on the workers of a coordinator.
#include "cohort/estimator/estimator.h"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "cohort/checkpoint_files/inspection.h"
#include "cohort/optimizer/optimizers.h"
#include "cohort/strategy/parameter_server_strategy.h"
#include "cohort/testing/cluster/test_cluster.h"
#include "cohort/testing/fake_clock.h"
#include "cohort/testing/temporary_folder.h"

namespace cohort::estimator {
namespace {

using std::chrono::seconds;
using ::testing::ElementsAre;
using testing::FakeClock;
using testing::TemporaryFolder;
using testing::TestCluster;

// y = 3 x.
EstimatorSpec line_on_servers(const ModelContext& context) {
  const Variable weight = context.strategy.variable("line/weight", torch::zeros({1}));
  const SGD sgd({weight}, {.learning_rate = 0.02});
  const metrics::Mean loss({.name = "loss"});
  const auto losses_of = [weight](const Nest& element) {
    const at::Tensor x = element.items()[0].tensor(), y = element.items()[1].tensor();
    return x.mul(weight.tensor()).sub(y).square();
  };
  return {.train_step =
              [=](const Nest& element) {
                const at::Tensor mean = average_loss(losses_of(element));
                sgd.minimize(mean);
                return mean;
              },
          .eval_step = [=](const Nest& element) { loss.update(losses_of(element)); },
          .eval_metrics = {loss}};
}

// `count` batches of two rows for all workers together.
InputFunction line_of(std::int64_t count) {
  return [count](const InputContext& context) {
    return Dataset::range(2 * count).shard(context).batch(2).map([](at::Tensor number) {
      const at::Tensor x = number.remainder(5).to(at::kFloat).add(1);
      return std::tuple(x, x.mul(3));
    });
  };
}
InputFunction endless_line_of(std::int64_t count) {
  return [count](const InputContext& context) { return line_of(count)(context).repeat(); };
}

class EstimatorOnServers : public ::testing::Test {
 protected:
  Estimator estimator(RunConfigOptions options) {
    options.model_dir = folder_.file("model");
    options.train_distribute = &strategy_;
    options.clock = &clock_;
    return Estimator(line_on_servers, RunConfig(std::move(options)));
  }
  std::vector<std::int64_t> saved() const {
    std::vector<std::int64_t> steps;
    for (const std::string& path : checkpoint::checkpoints_in(folder_.file("model")))
      steps.push_back(checkpoint::summary_of(path).step);
    return steps;
  }
  TemporaryFolder folder_;
  FakeClock clock_;
  TestCluster cluster_{{.workers = 2, .ps = 1, .command = {COHORT_COMMAND, "server"}}};
  ParameterServerStrategy strategy_{cluster_.resolver()};
};

TEST_F(EstimatorOnServers, TrainsToTheEndOfTheDataAndEvaluatesHere) {
  Estimator model = estimator({});
  EXPECT_EQ(model.train(line_of(60)), 60);
  EXPECT_THAT(saved(), ElementsAre(0, 60));
  const EvaluationResult result = model.evaluate(line_of(5));
  EXPECT_EQ(result.global_step, 60);
  EXPECT_LT(result.values.at("loss"), 0.1);
  EXPECT_EQ(model.train(line_of(10)), 70);
}

TEST_F(EstimatorOnServers, StopsInTheMiddleOfAnEpoch) {
  Estimator model = estimator({});
  EXPECT_EQ(model.train(line_of(60), {.max_steps = 7}), 7);
  EXPECT_THAT(saved(), ElementsAre(0, 7));
}

// Without a step more or less: the value of the weight follows from the number of steps.
TEST_F(EstimatorOnServers, CheckpointsAreOfTheStepThatTheyName) {
  Estimator model(
      [](const ModelContext& context) {
        const Variable count = context.strategy.variable("count", torch::zeros({}),
                                                         {.aggregation = VariableAggregation::sum});
        return EstimatorSpec{.train_step = [count](const Nest& /*element*/) {
          count.assign_add(torch::ones({}));
          return torch::ones({});
        }};
      },
      RunConfig({.model_dir = folder_.file("model"),
                 .save_checkpoints_steps = 10,
                 .keep_checkpoint_max = 0,
                 .train_distribute = &strategy_}));
  model.train(endless_line_of(20), {.max_steps = 25});
  EXPECT_THAT(saved(), ElementsAre(0, 10, 20, 25));
  EXPECT_EQ(model.get_variable_value("count").item<float>(), 25);
}

struct EachStepTakes final : TrainingHook {
  explicit EachStepTakes(FakeClock& moved) : clock(moved) {}
  void after_step(HookContext& context) override {
    clock.advance(seconds(1));
    losses.push_back(context.loss());
    if (context.global_step() == 100) context.request_stop();
  }
  FakeClock& clock;
  std::vector<double> losses;
};

TEST_F(EstimatorOnServers, SavesAfterAnIntervalAndStopsForAHook) {
  Estimator model = estimator({.save_checkpoints_interval = seconds(40)});
  const auto hook = std::make_shared<EachStepTakes>(clock_);
  const std::int64_t end = model.train(endless_line_of(20), {.hooks = {hook}});
  EXPECT_GE(end, 100);
  EXPECT_EQ(hook->losses.size(), static_cast<std::size_t>(end));
  EXPECT_GT(hook->losses.front(), hook->losses.back());
  EXPECT_GE(saved().size(), 3U);
  EXPECT_GE(saved()[1], 40);
  EXPECT_EQ(saved().back(), end);
}

}  // namespace
}  // namespace cohort::estimator
