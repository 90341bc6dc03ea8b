// SPDX-License-Identifier: Apache-2.0
// Mistakes of newcomers: each error says what to write instead.
#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "cohort/core/string_tensor.h"
#include "cohort/data/dataset.h"
#include "cohort/optimizer/optimizers.h"
#include "cohort/strategy/synchronous_strategy.h"
#include "cohort/strategy/torch_optimizer.h"
#include "cohort/testing/throws_error.h"

namespace cohort {
namespace {

using testing::throws_error;

struct Remedies : ::testing::Test {
  MirroredStrategy strategy{{"CPU:0", "CPU:1"}};
};

// A field of strings was a tensor whose operators failed with an internal error of LibTorch.
TEST_F(Remedies, AStringFieldAsATensorNamesTheFunctionsThatMakeNumbers) {
  const Dataset words =
      Dataset::from_tensor_slices(Nest(StringTensor({4}, {"a", "b", "c", "d"}))).batch(4);
  int batches = 0;
  for (const auto& batch : strategy.distribute_dataset(words)) {
    ++batches;
    EXPECT_THAT([&] { strategy.run([](const at::Tensor& x) { return x; }, batch); },
                throws_error(ErrorCode::invalid_argument, "data::lookup()"));
    strategy.run([](const StringTensor& x) { EXPECT_EQ(x.sizes().at(0), 2); }, batch);
  }
  EXPECT_EQ(batches, 1);
}

TEST_F(Remedies, TwoStrategiesOfOneKindAreToldApart) {
  MirroredStrategy other({"CPU:0", "CPU:1"});
  const StrategyScope scope = strategy.scope();
  EXPECT_THAT([&] { other.variable("v", at::zeros({})); },
              throws_error(ErrorCode::failed_precondition,
                           "[strategy.variable] mixing strategies: expected 'mirrored' or none to "
                           "be current, got another 'mirrored'"));
}

// Regression: the message asked to leave a scope, though there was none, and named nothing.
TEST_F(Remedies, WhatAnotherStrategyHasMadeIsNamedWhereARunUsesIt) {
  MirroredStrategy other({"CPU:0", "CPU:1"});
  const Variable v = other.variable("v", at::ones({}));
  const auto net = other.replicate([] { return torch::nn::Linear(2, 1); }, {.name = "net"});
  const SGD sgd({v}, {.learning_rate = 0.1});
  const TorchOptimizer torch_sgd(net, [](const std::vector<at::Tensor>& parameters) {
    return torch::optim::SGD(parameters, 0.1);
  });
  const auto refused = [&](const auto& use, const std::string& what) {
    EXPECT_THAT([&] { strategy.run(use); },
                throws_error(ErrorCode::failed_precondition,
                             "mixing strategies: expected 'mirrored', which has made " + what +
                                 ", or none to be current, got another 'mirrored' in its run(); "
                                 "use there only what its own strategy has made"));
  };
  refused([&] { v.tensor(); }, "variable 'v'");
  refused([&] { v.assign(1); }, "variable 'v'");
  refused([&] { net->forward(at::ones({1, 2})); }, "module 'net'");
  refused([&] { sgd.minimize(at::ones({}).requires_grad_()); }, "variable 'v'");
  refused([&] { torch_sgd.step(); }, "variable 'net/weight'");
  const auto outside = [&](const auto& call) {
    EXPECT_THAT([&] { strategy.run(call); },
                throws_error(ErrorCode::failed_precondition,
                             "or none to be current, got another 'mirrored' in its run(); call it "
                             "outside of that"));
  };
  outside([&] { other.run([] {}); });
  outside([&] { other.variable("w", at::ones({})); });
}

TEST_F(Remedies, MixingOutsideOfRunsAsksToLeaveWhatIsThere) {
  MirroredStrategy other({"CPU:0", "CPU:1"});
  const Variable v = other.variable("v", at::ones({}));
  const auto refused = [&](const std::string& remedy) {
    EXPECT_THAT([&] { v.read(); },
                throws_error(ErrorCode::failed_precondition, "got another 'mirrored'" + remedy));
  };
  {
    const StrategyScope scope = strategy.scope();
    refused("; leave its scope first");
  }
  set_strategy(&strategy);
  refused("; call set_strategy(nullptr)");
  set_strategy(nullptr);
}

TEST_F(Remedies, ASumOfOneNumberAsksForThoseOfTheReplicas) {
  EXPECT_THAT([&] { strategy.reduce(ReduceOp::sum, Nest(4)); },
              throws_error(ErrorCode::invalid_argument, "pass what run() has returned"));
}

TEST_F(Remedies, AScalarHasNoAxis) {
  const auto scalars = strategy.run([] { return at::ones({}); });
  EXPECT_THAT([&] { strategy.gather(scalars, 0); },
              throws_error(ErrorCode::invalid_argument, "reshape it to {1} in run()"));
  EXPECT_THAT([&] { strategy.reduce(ReduceOp::sum, scalars, 0); },
              throws_error(ErrorCode::invalid_argument, "reduce it without an axis"));
}

TEST_F(Remedies, AVariableOfTheDefaultStrategyNamesTheStrategiesThatHaveThem) {
  EXPECT_THAT(
      [] { default_strategy().variable("v", at::zeros({})); },
      throws_error(ErrorCode::unimplemented, "call the method of the strategy that trains"));
}

TEST_F(Remedies, AMapTakenAsATensorAsksForAnEntry) {
  const Nest map = Nest::map({{"loss", Nest(at::ones({}))}});
  EXPECT_THAT([&] { (void)map.tensor(); },
              throws_error(ErrorCode::invalid_argument, "take one of its values with entry(key)"));
  EXPECT_THAT([] { (void)Nest::tuple({Nest(1)}).tensor(); },
              throws_error(ErrorCode::invalid_argument, "take one of its items()"));
}

}  // namespace
}  // namespace cohort
