// SPDX-License-Identifier: Apache-2.0
// A loss that is a mean of a replica's own rows is warned of, also where it is not called one.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <string>

#include "cohort/optimizer/optimizers.h"
#include "cohort/strategy/synchronous_strategy.h"
#include "cohort/strategy/torch_optimizer.h"
#include "cohort/testing/warnings.h"

namespace cohort {
namespace {

constexpr const char* kMean = "is a mean over the rows";
constexpr const char* kUnscaled =
    "got a minimize() with gradients of a run() in which "
    "average_loss() was not called";

struct WarningsOfLosses : ::testing::Test {
  // Computes the loss from those of a replica's rows: 2 rows of 3 in the first replica.
  using Loss = std::function<at::Tensor(const at::Tensor& losses)>;

  MirroredStrategy two{{"CPU:0", "CPU:1"}};
  Variable w = two.variable("w", torch::tensor({1.0, -2.0}, torch::kDouble));
  const at::Tensor x = torch::tensor({{1.0, 2.0}, {3.0, -1.0}, {0.5, 4.0}}, torch::kDouble);
  const PerReplica<at::Tensor> parts{{x.narrow(0, 0, 2), x.narrow(0, 2, 1)}};
  int modules = 0;

  // How often five steps with this loss warn that it is a mean.
  int lines(const Loss& loss) {
    const SGD sgd({w}, {.learning_rate = 0.001});
    testing::Warnings warnings;
    for (int i = 0; i < 5; ++i)
      two.run([&](const at::Tensor& part) { sgd.minimize(loss(part.matmul(w.tensor()))); }, parts);
    return warnings.count(kMean);
  }
  // How often five steps of a TorchOptimizer warn with this text.
  int lines_of_torch(const std::string& text, const Loss& loss) {
    const auto net = two.replicate([] { return torch::nn::Linear(2, 1); },
                                   {.name = "net" + std::to_string(modules++)});
    const TorchOptimizer optimizer(net, [](std::vector<at::Tensor> parameters) {
      return torch::optim::SGD(std::move(parameters), torch::optim::SGDOptions(0.001));
    });
    testing::Warnings warnings;
    const auto step = [&](const at::Tensor& part) {
      optimizer.minimize(loss(net->forward(part.to(torch::kFloat)).squeeze(1)));
    };
    for (int i = 0; i < 5; ++i) two.run(step, parts);
    return warnings.count(text);
  }
};

// Regression: the steps were as many times too large as there are replicas, without a word.
TEST_F(WarningsOfLosses, AMeanIsSeenThatOtherStepsFollow) {
  EXPECT_EQ(lines([](const at::Tensor& losses) { return losses.sum() / losses.size(0); }), 1);
  EXPECT_EQ(lines([](const at::Tensor& losses) { return -losses.mean(); }), 1);
  EXPECT_EQ(lines([](const at::Tensor& losses) { return 2 * losses.mean() + 1; }), 1);
}

TEST_F(WarningsOfLosses, WhatTheProgramHasScaledIsRight) {
  EXPECT_EQ(lines([](const at::Tensor& losses) { return losses.sum() / 3; }), 0);
  EXPECT_EQ(lines([](const at::Tensor& losses) { return -losses.mean() / 2; }), 0);
  EXPECT_EQ(lines([](const at::Tensor& losses) { return -average_loss(losses); }), 0);
  EXPECT_EQ(lines([](const at::Tensor& losses) {
              return average_loss(losses, {.reduction = GradientReduction::mean_of_means});
            }),
            0);
  EXPECT_EQ(lines([](const at::Tensor& losses) {
              return average_loss(losses) + scale_regularization_loss(-losses.mean());
            }),
            0);
}

TEST_F(WarningsOfLosses, AverageLossCountsInItsOwnRun) {
  bool is_average = true;
  const auto loss = [&](const at::Tensor& losses) {
    return is_average ? average_loss(losses) : losses.sum() / losses.size(0);
  };
  EXPECT_EQ(lines(loss), 0);
  is_average = false;
  EXPECT_EQ(lines(loss), 1);
}

TEST_F(WarningsOfLosses, AMeanIsSeenInAFunction) {
  const SGD sgd({w}, {.learning_rate = 0.001});
  testing::Warnings warnings;
  two.function([&](const at::Tensor& part) { sgd.minimize(-part.matmul(w.tensor()).mean()); })(
      parts);
  EXPECT_EQ(warnings.count(kMean), 1);
}

// Regression: only step() warned, although the guide promised it for both.
TEST_F(WarningsOfLosses, MinimizeOfATorchOptimizerWithoutAverageLossIsWarnedOf) {
  const auto mean = [](const at::Tensor& losses) { return -losses.mean(); };
  EXPECT_EQ(lines_of_torch(kMean, mean), 1);
  EXPECT_EQ(lines_of_torch(kUnscaled, mean), 0) << "a second line of the same loss";
  EXPECT_EQ(
      lines_of_torch(kUnscaled, [](const at::Tensor& losses) { return losses.mean().square(); }),
      1);
  EXPECT_EQ(lines_of_torch(kUnscaled,
                           [](const at::Tensor& losses) { return average_loss(losses).square(); }),
            0);
  EXPECT_EQ(lines_of_torch(kUnscaled, [](const at::Tensor& losses) { return losses.sum() / 3; }),
            0);
}

}  // namespace
}  // namespace cohort
