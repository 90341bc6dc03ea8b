// SPDX-License-Identifier: Apache-2.0
// Compares the rules with torch::optim's, step by step, beside LibTorch's own kernels for this
// processor. They may use fused multiply-add, so bits may differ; each case states its bounds.
// tests/parity/optimizer_options_test.cpp compares bits and random options.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>

#include "cohort/optimizer/optimizers.h"

namespace cohort {
namespace {

constexpr int kSteps = 50;
constexpr double kRate = 0.05;
constexpr double kDecay = 0.125;

using MakeOptimizer = std::function<Optimizer(std::vector<Variable>)>;
using MakeTorch = std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<at::Tensor>)>;

struct Comparison {
  const char* name;
  MakeOptimizer ours;
  MakeTorch theirs;
};

template <class Torch, class Options>
MakeTorch torch_optimizer(Options options) {
  return [options](std::vector<at::Tensor> parameters) {
    return std::make_unique<Torch>(std::move(parameters), options);
  };
}

template <class Ours, class Options>
MakeOptimizer our_optimizer(Options options) {
  return [options](std::vector<Variable> variables) -> Optimizer {
    return Ours(std::move(variables), options);
  };
}

torch::optim::SGDOptions torch_sgd(double momentum, bool nesterov) {
  return torch::optim::SGDOptions(kRate).momentum(momentum).nesterov(nesterov).weight_decay(kDecay);
}

class BesideTorch : public ::testing::TestWithParam<Comparison> {
 protected:
  // The largest relative difference after any of the steps; NaN if one is.
  static double difference(at::ScalarType dtype) {
    torch::manual_seed(7);
    const at::Tensor start = torch::randn({6, 5}, dtype).add(2);
    const Variable variable = local_variable("w", start.clone());
    const Optimizer ours = GetParam().ours({variable});
    at::Tensor parameter = start.clone().requires_grad_();
    const auto theirs = GetParam().theirs({parameter});
    at::Tensor largest = torch::zeros({}, dtype);
    for (int step = 0; step < kSteps; ++step) {
      const at::Tensor gradient = torch::randn({6, 5}, dtype).add(0.5);
      ours.apply_gradients({{gradient, variable}});
      parameter.mutable_grad() = gradient.clone();
      theirs->step();
      const at::Tensor expected = parameter.detach();
      const at::Tensor gap = variable.read().sub(expected).abs() / expected.abs().add(0.1);
      largest = at::maximum(largest, gap.max());
    }
    return largest.item<double>();
  }
};

TEST_P(BesideTorch, InFloat64EveryStepDiffersByLessThan1e12) {
  EXPECT_LT(difference(at::kDouble), 1e-12);
}

TEST_P(BesideTorch, InFloat32EveryStepDiffersByLessThan1e5) {
  EXPECT_LT(difference(at::kFloat), 1e-5);
}

INSTANTIATE_TEST_SUITE_P(
    Rules, BesideTorch,
    ::testing::Values(
        Comparison{"SGD",
                   our_optimizer<SGD>(SGDOptions{.learning_rate = kRate, .weight_decay = kDecay}),
                   torch_optimizer<torch::optim::SGD>(torch_sgd(0, false))},
        Comparison{"Momentum",
                   our_optimizer<SGD>(SGDOptions{
                       .learning_rate = kRate, .momentum = 0.9, .weight_decay = kDecay}),
                   torch_optimizer<torch::optim::SGD>(torch_sgd(0.9, false))},
        Comparison{
            "Nesterov",
            our_optimizer<SGD>(SGDOptions{
                .learning_rate = kRate, .momentum = 0.9, .nesterov = true, .weight_decay = kDecay}),
            torch_optimizer<torch::optim::SGD>(torch_sgd(0.9, true))},
        Comparison{"DampenedMomentum",
                   our_optimizer<SGD>(SGDOptions{
                       .learning_rate = kRate, .momentum = 0.9, .dampening = 0.25}),
                   torch_optimizer<torch::optim::SGD>(
                       torch::optim::SGDOptions(kRate).momentum(0.9).dampening(0.25))},
        Comparison{"Adam",
                   our_optimizer<Adam>(AdamOptions{.learning_rate = kRate, .weight_decay = kDecay}),
                   torch_optimizer<torch::optim::Adam>(
                       torch::optim::AdamOptions(kRate).weight_decay(kDecay))},
        Comparison{
            "AdamAmsgrad",
            our_optimizer<Adam>(AdamOptions{.learning_rate = kRate, .eps = 0.125, .amsgrad = true}),
            torch_optimizer<torch::optim::Adam>(
                torch::optim::AdamOptions(kRate).eps(0.125).amsgrad(true))},
        Comparison{
            "AdamW",
            our_optimizer<AdamW>(AdamWOptions{.learning_rate = kRate, .weight_decay = kDecay}),
            torch_optimizer<torch::optim::AdamW>(
                torch::optim::AdamWOptions(kRate).weight_decay(kDecay))},
        Comparison{"Adagrad",
                   our_optimizer<Adagrad>(AdagradOptions{
                       .learning_rate = kRate, .lr_decay = 0.25, .weight_decay = kDecay}),
                   torch_optimizer<torch::optim::Adagrad>(
                       torch::optim::AdagradOptions(kRate).lr_decay(0.25).weight_decay(kDecay))},
        Comparison{"RMSprop", our_optimizer<RMSprop>(RMSpropOptions{.learning_rate = kRate}),
                   torch_optimizer<torch::optim::RMSprop>(torch::optim::RMSpropOptions(kRate))},
        Comparison{"RMSpropCenteredMomentum",
                   our_optimizer<RMSprop>(RMSpropOptions{.learning_rate = kRate,
                                                         .eps = 0.125,
                                                         .weight_decay = kDecay,
                                                         .momentum = 0.5,
                                                         .centered = true}),
                   torch_optimizer<torch::optim::RMSprop>(torch::optim::RMSpropOptions(kRate)
                                                              .eps(0.125)
                                                              .weight_decay(kDecay)
                                                              .momentum(0.5)
                                                              .centered(true))}),
    [](const auto& test) { return test.param.name; });

// Regression: Adagrad began at 0.1 and RMSprop at 1, and other defaults were TensorFlow's, too.
TEST(DefaultsOfOptimizers, AreThoseOfTorch) {
  const std::vector<Variable> w{local_variable("w", torch::ones({2}))};
  const auto expect = [](const Optimizer& ours, std::vector<double> expected) {
    for (const std::string_view name : ours.rule().hyperparameter_names()) {
      EXPECT_EQ(ours.hyperparameter(name), expected.at(0)) << ours.rule().name() << " " << name;
      expected.erase(expected.begin());
    }
    EXPECT_TRUE(expected.empty()) << ours.rule().name();
  };
  const torch::optim::SGDOptions sgd(0.01);  // it has no default
  expect(SGD(w), {sgd.lr(), sgd.weight_decay()});
  const torch::optim::AdamOptions adam;
  expect(Adam(w), {adam.lr(), std::get<0>(adam.betas()), std::get<1>(adam.betas()), adam.eps(),
                   adam.weight_decay()});
  const torch::optim::AdamWOptions adamw;
  expect(AdamW(w), {adamw.lr(), std::get<0>(adamw.betas()), std::get<1>(adamw.betas()), adamw.eps(),
                    adamw.weight_decay()});
  const torch::optim::AdagradOptions adagrad;
  expect(Adagrad(w), {adagrad.lr(), adagrad.initial_accumulator_value(), adagrad.lr_decay(),
                      adagrad.eps(), adagrad.weight_decay()});
  const torch::optim::RMSpropOptions rmsprop;
  expect(RMSprop(w), {rmsprop.lr(), rmsprop.alpha(), rmsprop.eps(), rmsprop.weight_decay()});
}

// Weights decay and biases do not, at another rate: torch's list of groups.
TEST(GroupsBesideTorch, GiveTheNumbersOfParameterGroups) {
  torch::manual_seed(5);
  const at::Tensor weight = torch::randn({6, 5}, at::kDouble), bias = torch::randn(5, at::kDouble);
  const std::vector<Variable> ours{local_variable("net.weight", weight.clone()),
                                   local_variable("net.bias", bias.clone())};
  const AdamW optimizer(
      ours, {.learning_rate = kRate,
             .weight_decay = kDecay,
             .groups = {{.pattern = "*.bias", .learning_rate_factor = 0.5, .weight_decay = 0}}});
  std::vector<at::Tensor> theirs{weight.clone().requires_grad_(), bias.clone().requires_grad_()};
  const auto group = [](const at::Tensor& parameter, double rate, double decay) {
    return torch::optim::OptimizerParamGroup(
        {parameter}, std::make_unique<torch::optim::AdamWOptions>(
                         torch::optim::AdamWOptions(rate).weight_decay(decay)));
  };
  torch::optim::AdamW expected({group(theirs[0], kRate, kDecay), group(theirs[1], kRate * 0.5, 0)},
                               torch::optim::AdamWOptions(kRate));
  for (int step = 0; step < kSteps; ++step) {
    std::vector<std::pair<at::Tensor, Variable>> gradients;
    for (std::size_t i = 0; i < ours.size(); ++i) {
      gradients.emplace_back(torch::randn_like(theirs[i]), ours[i]);
      theirs[i].mutable_grad() = gradients[i].first.clone();
    }
    optimizer.apply_gradients(gradients);
    expected.step();
  }
  for (std::size_t i = 0; i < ours.size(); ++i)
    EXPECT_TRUE(torch::allclose(ours[i].read(), theirs[i], 1e-12, 1e-12)) << ours[i].name();
}

// torch divides by the norm plus 1e-6, which the bound allows for.
TEST(ClippingBesideTorch, GivesTheNormAndTheGradientsOfClipGradNorm) {
  torch::manual_seed(3);
  for (const at::ScalarType type : {at::kFloat, at::kDouble}) {
    const double digits = type == at::kFloat ? 1e-6 : 1e-14;
    for (const double max_norm : {0.5, 1e3}) {
      std::vector<at::Tensor> gradients, parameters;
      for (const auto& sizes : std::vector<std::vector<std::int64_t>>{{300, 70}, {70}, {1}}) {
        gradients.push_back(torch::randn(sizes, type));
        parameters.push_back(torch::zeros(sizes, type).requires_grad_());
        parameters.back().mutable_grad() = gradients.back().clone();
      }
      const double theirs = torch::nn::utils::clip_grad_norm_(parameters, max_norm);
      const auto [clipped, norm] = clip_by_global_norm(gradients, max_norm);
      EXPECT_NEAR(norm.item<double>() / theirs, 1, digits);
      for (std::size_t i = 0; i < clipped.size(); ++i) {
        EXPECT_TRUE(torch::allclose(clipped[i], parameters[i].grad(), digits + 1e-6 / theirs, 0))
            << max_norm << " of " << type;
      }
    }
  }
}

TEST(StepLR, IsExponentialDecayWithAStaircase) {
  at::Tensor parameter = torch::ones({1}).requires_grad_();
  torch::optim::SGD sgd({parameter}, 0.5);
  torch::optim::StepLR step_lr(sgd, /*step_size=*/3, /*gamma=*/0.5);
  step_lr.step();  // as Python's constructor does; otherwise LibTorch's decays a step later
  const ExponentialDecay decay(
      {.initial_learning_rate = 0.5, .decay_steps = 3, .decay_rate = 0.5, .staircase = true});
  for (std::int64_t step = 0; step < 10; ++step) {
    EXPECT_DOUBLE_EQ(decay(step), sgd.param_groups()[0].options().get_lr()) << step;
    step_lr.step();
  }
}

}  // namespace
}  // namespace cohort
