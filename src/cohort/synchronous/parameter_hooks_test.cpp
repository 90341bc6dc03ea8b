// SPDX-License-Identifier: Apache-2.0
// Hooks that a program registers on a parameter change its gradient, as in backward(): in each
// replica, one after the other, before the gradients of the replicas are added.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <stdexcept>
#include <utility>

#include "cohort/optimizer/optimizers.h"
#include "cohort/strategy/synchronous_strategy.h"
#include "cohort/strategy/torch_optimizer.h"
#include "cohort/synchronous/whole_batch_fixture.h"
#include "cohort/testing/warnings.h"

namespace cohort {
namespace {

using testing::Tensors;

struct HookedImpl : torch::nn::Module {
  HookedImpl() {
    hooked.register_hook([](const at::Tensor& gradient) { return gradient * 4; });
    hooked.register_hook([](const at::Tensor& gradient) { return gradient + 1; });
    // It writes into a gradient that is also that of `plain`.
    zeroed.register_hook([](at::Tensor gradient) { gradient.zero_(); });
  }
  at::Tensor hooked = register_parameter("hooked", torch::full({1}, 10.0));
  at::Tensor zeroed = register_parameter("zeroed", torch::full({1}, 10.0));
  at::Tensor plain = register_parameter("plain", torch::full({1}, 10.0));
};
TORCH_MODULE(Hooked);

struct PairImpl : torch::nn::Module {
  at::Tensor a = register_parameter("a", torch::full({1}, 10.0));
  at::Tensor b = register_parameter("b", torch::full({1}, 10.0));
};
TORCH_MODULE(Pair);

class ParameterHooks : public ::testing::TestWithParam<int> {
 protected:
  static torch::optim::SGD torch_sgd(Tensors parameters) {
    return torch::optim::SGD(std::move(parameters), torch::optim::SGDOptions(0.5));
  }
  // The share of this replica. The gradients of the whole batch are 2, 1 and 1.
  at::Tensor loss() const {
    return (model_->hooked * 2 + (model_->zeroed + model_->plain)).sum() / GetParam();
  }
  // For backward(), in which a hook that writes also changes the other one of two equal gradients.
  at::Tensor loss_of_products() const {
    return (model_->hooked * 2 + model_->zeroed * 1 + model_->plain * 1).sum() / GetParam();
  }
  // In each replica, the gradient is 4 * 2 / replicas + 1.
  void expect_values_after(int steps) const {
    const Tensors values = testing::values_of(model_.parameters());
    EXPECT_EQ(values[0].item<double>(), 10 - 0.5 * (8 + GetParam()) * steps);
    EXPECT_EQ(values[1].item<double>(), 10);
    EXPECT_EQ(values[2].item<double>(), 10 - 0.5 * steps);
  }

  MirroredStrategy strategy_{testing::devices_for(testing::Sizes(GetParam()))};
  const Replicated<Hooked> model_ = strategy_.replicate([] { return Hooked(); });
  const SGD sgd_{model_.parameters(), {.learning_rate = 0.5}};
};

// Regression: minimize() trained with the gradient that no hook had seen.
TEST_P(ParameterHooks, ChangeTheGradientsOfMinimize) {
  for (int step = 0; step < 2; ++step) strategy_.run([&] { sgd_.minimize(loss()); });
  expect_values_after(2);
}

TEST_P(ParameterHooks, ChangeComputedGradients) {
  strategy_.run([&] { sgd_.apply_gradients(sgd_.compute_gradients(loss())); });
  expect_values_after(1);
}

// Regression: a hook that was registered on Variable::tensor() outside of run() changed the
// gradient of replica 0 alone, without a word.
TEST(HooksOfOneReplica, AreWarnedOfOnce) {
  constexpr const char* kLine = "expected as many hooks on the tensor of variable 'pair/a'";
  MirroredStrategy strategy({"CPU:0", "CPU:1"});
  const auto model = strategy.replicate([] { return Pair(); }, {.name = "pair"});
  const SGD sgd(model.parameters(), {.learning_rate = 0.5});
  const auto train = [&] { strategy.run([&] { sgd.minimize((model->a + model->b).sum() / 2); }); };
  testing::Warnings warnings;
  train();
  EXPECT_EQ(warnings.count(kLine), 0);
  model.parameters().front().tensor().register_hook([](const at::Tensor& g) { return g * 2; });
  for (int i = 0; i < 3; ++i) train();
  EXPECT_EQ(warnings.count(kLine), 1);
}

// Regression: step() called them, and minimize() did not.
TEST_P(ParameterHooks, ChangeTheGradientsOfATorchOptimizer) {
  const TorchOptimizer optimizer(model_, torch_sgd);
  strategy_.run([&] { optimizer.minimize(loss()); });
  strategy_.run([&] {
    loss_of_products().backward();
    optimizer.step();
  });
  expect_values_after(2);
}

TEST_P(ParameterHooks, ArePartOfATracedStep) {
  const auto step = strategy_.function([&] { sgd_.minimize(loss()); });
  for (int i = 0; i < 3; ++i) step();
  expect_values_after(3);
}

TEST_P(ParameterHooks, MayThrow) {
  strategy_.run([&] {
    model_->plain.register_hook([](const at::Tensor&) { throw std::runtime_error("bad"); });
  });
  EXPECT_ANY_THROW(strategy_.run([&] { sgd_.minimize(loss()); }));
  expect_values_after(0);
}

// The hook by which left-over gradients are dropped belongs to passes that add to grad().
TEST_P(ParameterHooks, OfATorchOptimizerLeaveGradAloneInMinimize) {
  const auto of = [](std::size_t i) {
    return [i](const Tensors& all) { return torch_sgd({all.at(i)}); };
  };
  const TorchOptimizer first(model_, of(0)), second(model_, of(2));
  const SGD of_plain({model_.parameters()[2]}, {.learning_rate = 0.5});
  strategy_.run([&] {
    loss_of_products().backward();
    first.step();
    of_plain.minimize(model_->plain.sum() / GetParam());
    second.step();
  });
  EXPECT_EQ(testing::values_of(model_.parameters())[2].item<double>(), 10 - 0.5 - 0.5);
}

// Regression: of a gradient that two parameters have, `change` scaled that of both twice.
TEST_P(ParameterHooks, AGradientOfTwoParametersIsChangedOnceForEach) {
  const auto pair = strategy_.replicate([] { return Pair(); }, {.name = "pair"});
  const TorchOptimizer optimizer(pair, torch_sgd);
  strategy_.run([&] {
    optimizer.minimize((pair->a + pair->b).sum() / GetParam(), [](torch::optim::SGD& own) {
      for (const at::Tensor& each : own.param_groups()[0].params()) each.mutable_grad().mul_(0.5);
    });
  });
  for (const at::Tensor& value : testing::values_of(pair.parameters()))
    EXPECT_EQ(value.item<double>(), 10 - 0.25);
}

INSTANTIATE_TEST_SUITE_P(Replicas, ParameterHooks, ::testing::Values(1, 2, 4));

}  // namespace
}  // namespace cohort
