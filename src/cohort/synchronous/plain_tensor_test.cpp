// SPDX-License-Identifier: Apache-2.0
// A plain tensor that is given to run() or to a step of function() in place of a distributed one.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <utility>
#include <vector>

#include "cohort/optimizer/optimizers.h"
#include "cohort/strategy/synchronous_strategy.h"
#include "cohort/strategy/torch_optimizer.h"
#include "cohort/testing/warnings.h"

namespace cohort {
namespace {

constexpr const char* kPlainTensor =
    "A plain tensor that is given to run() or to a step of function() is whole in each replica";

struct PlainTensors : ::testing::Test {
  MirroredStrategy two{{"CPU:0", "CPU:1"}};
  Variable w = two.variable("w", torch::tensor({1.0, -2.0}, torch::kDouble));
  Variable b = two.variable("b", torch::tensor(0.5, torch::kDouble));
  const at::Tensor x = torch::tensor({{1.0, 2.0}, {3.0, -1.0}, {0.5, 4.0}}, torch::kDouble);
  const PerReplica<at::Tensor> parts{{x.narrow(0, 0, 2), x.narrow(0, 2, 1)}};

  at::Tensor predicted(const at::Tensor& part) const {
    return part.matmul(w.tensor()) + b.tensor();
  }
  // How often five calls warn.
  template <class Step, class... Arguments>
  static int lines_of(const Step& step, const Arguments&... arguments) {
    testing::Warnings warnings;
    for (int i = 0; i < 5; ++i) step(arguments...);
    return warnings.count(kPlainTensor);
  }
};

// Regression: each replica trained on the whole batch without a word, and so it did where the
// losses of the replicas were not equal, as with dropout.
TEST_F(PlainTensors, APlainTensorForDistributedRowsIsWarnedOfOnce) {
  const SGD sgd({w, b}, {.learning_rate = 0.001});
  const auto train = [&](const at::Tensor& part) {
    sgd.minimize(average_loss(predicted(torch::dropout(part, 0.5, /*train=*/true))));
  };
  const auto run = [&](const auto& rows) { two.run(train, rows); };
  EXPECT_EQ(lines_of(run, parts), 0);
  EXPECT_EQ(lines_of(run, x), 1);
  EXPECT_EQ(lines_of(run, x), 0);
}

// Regression: only run() warned, and the function only of equal gradients.
TEST_F(PlainTensors, APlainTensorIsWarnedOfOnceInAFunction) {
  const SGD sgd({w, b}, {.learning_rate = 0.001});
  const auto train = [&](const at::Tensor& part) {
    sgd.minimize(average_loss(predicted(torch::dropout(part, 0.5, /*train=*/true))));
  };
  const auto evaluate = [&](const at::Tensor& part) { return predicted(part).sum(); };
  EXPECT_EQ(lines_of(two.function(train), parts), 0);
  EXPECT_EQ(lines_of(two.function(evaluate), x), 0);
  EXPECT_EQ(lines_of(two.function(train), x), 1);
  EXPECT_EQ(lines_of(two.function(train), x), 0);
}

// Regression: each replica trained on the whole batch without a word.
TEST_F(PlainTensors, ACapturedBatchIsWarnedOfOnceWhereItsLossesAreEqual) {
  constexpr const char* kCaptured = "such as those of a batch that the step captures";
  const SGD sgd({w, b}, {.learning_rate = 0.001});
  testing::Warnings warnings;
  for (int i = 0; i < 5; ++i) two.run([&] { sgd.minimize(average_loss(predicted(x))); });
  EXPECT_EQ(warnings.count(kCaptured), 1);
  const SGD other({w, b});
  for (int i = 0; i < 5; ++i) {
    two.run([&](const at::Tensor& part) { other.minimize(average_loss(predicted(part))); }, parts);
  }
  EXPECT_EQ(warnings.count(kCaptured), 1);
}

TEST_F(PlainTensors, APlainTensorIsWarnedOfWithATorchOptimizer) {
  const auto net = two.replicate([] { return torch::nn::Linear(2, 1); }, {.name = "net"});
  const TorchOptimizer optimizer(net, [](std::vector<at::Tensor> parameters) {
    return torch::optim::SGD(std::move(parameters), torch::optim::SGDOptions(0.1));
  });
  const auto train = [&](const Nest& part) {
    optimizer.minimize(average_loss(net->forward(part.items()[0].tensor().to(at::kFloat))));
  };
  EXPECT_EQ(lines_of([&](const Nest& batch) { two.run(train, batch); }, Nest::list({x})), 1);
}

TEST_F(PlainTensors, APlainTensorWithoutRowsOrBesideDistributedOnesIsRight) {
  const SGD sgd({w, b}, {.learning_rate = 0.001});
  const auto train = [&](const at::Tensor& part, const at::Tensor& scale) {
    sgd.minimize(average_loss(predicted(part) * scale.sum()));
  };
  const auto evaluate = [&](const at::Tensor& part) { return predicted(part).sum(); };
  const auto step = two.function(train);
  testing::Warnings warnings;
  for (int i = 0; i < 5; ++i) {
    two.run(train, parts, x);
    step(parts, x);
    two.run([&](double scale) { train(x.narrow(0, 0, 1), at::scalar_tensor(scale)); }, 0.5);
    two.run(train, x.narrow(0, 0, 1), torch::tensor(0.5));
    two.run(evaluate, x);
  }
  EXPECT_EQ(warnings.count(kPlainTensor), 0);
}

}  // namespace
}  // namespace cohort
