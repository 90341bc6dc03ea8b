// SPDX-License-Identifier: Apache-2.0
// Steps of strategy.function() train ordinary modules as run() of the same steps does, bit for bit.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>

#include "cohort/optimizer/optimizers.h"
#include "cohort/strategy/synchronous_strategy.h"
#include "cohort/testing/cpu_devices.h"
#include "cohort/testing/throws_error.h"

namespace cohort {
namespace {

using testing::throws_error;

struct MlpImpl : torch::nn::Module {
  explicit MlpImpl(bool is_tied = false) {
    first = register_module("first", torch::nn::Linear(6, 8));
    last = register_module("last", torch::nn::Linear(8, 3));
    if (is_tied) middle = register_module("middle", torch::nn::Linear(8, 8));
  }
  at::Tensor forward(const at::Tensor& x) {
    at::Tensor hidden = first->forward(x).relu();
    if (middle)
      hidden = middle->forward(middle->forward(hidden).tanh()) + hidden.mm(middle->weight);
    return last->forward(hidden);
  }
  torch::nn::Linear first{nullptr}, last{nullptr}, middle{nullptr};
};
TORCH_MODULE(Mlp);

struct CnnImpl : torch::nn::Module {
  CnnImpl() {
    conv = register_module("conv", torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 4, 3)));
    norm = register_module("norm", torch::nn::BatchNorm2d(4));
    last = register_module("last", torch::nn::Linear(16, 3));
  }
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor image = x.narrow(1, 0, 6).unsqueeze(1).unsqueeze(3).expand({-1, 1, 6, 6});
    const at::Tensor maps = norm->forward(conv->forward(image)).relu();
    return last->forward(torch::max_pool2d(maps, 2).flatten(1));
  }
  torch::nn::Conv2d conv{nullptr};
  torch::nn::BatchNorm2d norm{nullptr};
  torch::nn::Linear last{nullptr};
};
TORCH_MODULE(Cnn);

// The sizes of the replicas' parts in each step.
using StepSizes = std::vector<std::vector<std::int64_t>>;

StepSizes even(std::size_t replicas, std::size_t steps = 20) {
  return StepSizes(steps, std::vector<std::int64_t>(replicas, 4));
}

using MakeOptimizer = std::function<Optimizer(const std::vector<Variable>&)>;
Optimizer sgd(const std::vector<Variable>& variables) {
  return SGD(variables, {.learning_rate = 0.1});
}
Optimizer momentum(const std::vector<Variable>& variables) {
  return SGD(variables, {.learning_rate = 0.05, .momentum = 0.9, .nesterov = true});
}
Optimizer adam(const std::vector<Variable>& variables) {
  const ExponentialDecay rate({.initial_learning_rate = 0.01, .decay_steps = 3, .decay_rate = 0.7});
  return Adam(variables, {.learning_rate = rate});
}

// The losses of all steps, the rate after each, and all components at the end.
template <class S, class Make>
std::vector<at::Tensor> trained(bool is_traced, const StepSizes& sizes, const Make& make,
                                const MakeOptimizer& make_optimizer) {
  S strategy(testing::cpu_devices(static_cast<int>(sizes[0].size())));
  torch::manual_seed(1);
  const auto model = strategy.replicate(make);
  Optimizer optimizer = make_optimizer(model.parameters());
  const auto step = [&](const at::Tensor& x, const at::Tensor& y) {
    const at::Tensor losses =
        torch::cross_entropy_loss(model->forward(x), y, {}, at::Reduction::None);
    const at::Tensor loss = average_loss(losses);
    optimizer.minimize(loss);
    return std::tuple(loss, losses);
  };
  const auto traced = strategy.function(step);
  std::vector<at::Tensor> values;
  torch::manual_seed(1);
  for (const std::vector<std::int64_t>& parts : sizes) {
    std::vector<at::Tensor> x, y;
    for (const std::int64_t rows : parts) {
      x.push_back(torch::randn({rows, 6}));
      y.push_back(torch::randint(3, {rows}, torch::kLong));
    }
    const PerReplica<at::Tensor> inputs(x), labels(y);
    const auto results = is_traced ? traced(inputs, labels) : strategy.run(step, inputs, labels);
    for (const auto& [loss, losses] : strategy.local_results(results)) {
      values.push_back(loss.detach().clone());
      values.push_back(losses.detach().clone());
    }
    values.push_back(torch::tensor(optimizer.learning_rate(), torch::kDouble));
  }
  EXPECT_EQ(optimizer.iterations(), static_cast<std::int64_t>(sizes.size()));
  for (const Variable& variable : model.variables()) {
    for (const Variable& component : strategy.local_results(variable))
      values.push_back(component.read().detach());
  }
  return values;
}

template <class S, class Make>
void expect_as_run(const StepSizes& sizes, const Make& make, const MakeOptimizer& optimizer) {
  const std::vector<at::Tensor> wanted = trained<S>(false, sizes, make, optimizer);
  const std::vector<at::Tensor> got = trained<S>(true, sizes, make, optimizer);
  ASSERT_EQ(got.size(), wanted.size());
  for (std::size_t i = 0; i < got.size(); ++i)
    ASSERT_TRUE(got[i].equal(wanted[i])) << "value " << i << " of " << got.size();
}

TEST(StrategyFunctionModules, TrainAnMlpWithEachOptimizer) {
  for (const MakeOptimizer& optimizer :
       {MakeOptimizer(sgd), MakeOptimizer(momentum), MakeOptimizer(adam)}) {
    for (const std::size_t replicas : {1, 2, 3})
      expect_as_run<MirroredStrategy>(
          even(replicas), [] { return Mlp(); }, optimizer);
  }
}

TEST(StrategyFunctionModules, TrainWithBatchNormAndPooling) {
  for (const std::size_t replicas : {1, 2, 3})
    expect_as_run<MirroredStrategy>(
        even(replicas), [] { return Cnn(); }, sgd);
}

TEST(StrategyFunctionModules, TrainWithSyncBatchNorm) {
  using Norm = SyncBatchNorm<torch::nn::BatchNorm1d>;
  for (const bool has_momentum : {true, false}) {
    const auto make = [=] {
      torch::nn::BatchNormOptions options(8);
      if (!has_momentum) options.momentum(c10::nullopt);
      return torch::nn::Sequential(torch::nn::Linear(6, 8), Norm(options), torch::nn::ReLU(),
                                   torch::nn::Linear(8, 3));
    };
    for (const std::size_t replicas : {2, 3})
      expect_as_run<MirroredStrategy>(even(replicas), make, sgd);
    expect_as_run<MirroredStrategy>({{4, 1}, {1, 4}, {3, 0}, {4, 1}}, make, sgd);
  }
  MirroredStrategy two({"CPU:0", "CPU:1"});
  const auto model = two.replicate([] { return Norm(6); });
  const auto step = two.function([&](const at::Tensor& x) { return model->forward(x); });
  EXPECT_THAT(
      [&] {
        step(PerReplica<at::Tensor>({torch::ones({1, 6}), torch::ones({0, 6})}));
      },
      throws_error(ErrorCode::invalid_argument, "more than one value for each channel"));
}

// Regression: offsets must begin with 0, so the second pass of a trace fails with other ones and is
// made again; the results of the first were lost.
TEST(StrategyFunctionModules, UseArgumentsThatHaveFewValues) {
  MirroredStrategy two({"CPU:0", "CPU:1"});
  const auto model = two.replicate([] { return torch::nn::EmbeddingBag(5, 3); });
  const auto step = [&](const at::Tensor& ids, const at::Tensor& offsets) {
    return model->forward(ids, offsets).sum(1);
  };
  const auto traced = two.function(step);
  const at::Tensor ids = torch::tensor({1, 2, 4, 3, 0}), offsets = torch::tensor({0, 2, 4});
  for (int repeat = 0; repeat < 2; ++repeat)
    EXPECT_TRUE(traced(ids, offsets)[1].equal(two.run(step, ids, offsets)[1].detach()));
}

TEST(StrategyFunctionModules, TrainTiedWeights) {
  for (const std::size_t replicas : {1, 2})
    expect_as_run<MirroredStrategy>(
        even(replicas), [] { return Mlp(true); }, adam);
}

TEST(StrategyFunctionModules, TrainWithUnevenAndEmptyBatches) {
  StepSizes sizes = even(2, 12);
  sizes[3] = sizes[5] = {4, 1};
  sizes[7] = {4, 0};
  sizes[8] = {0, 3};
  sizes[9] = {1, 4};
  expect_as_run<MirroredStrategy>(
      sizes, [] { return Mlp(); }, adam);
}

TEST(StrategyFunctionModules, TrainSharedParameters) {
  for (const std::size_t replicas : {1, 2, 3}) {
    expect_as_run<CentralStorageStrategy>(
        even(replicas), [] { return Cnn(); }, adam);
  }
}

TEST(StrategyFunctionModules, TrainManyElementsInShares) {
  const auto make = [] {
    return torch::nn::Sequential(torch::nn::Linear(6, 12000), torch::nn::Linear(12000, 3));
  };
  const int before = at::get_num_threads();
  for (const int threads : {1, 4}) {
    at::set_num_threads(threads);
    for (const std::size_t replicas : {2, 3})
      expect_as_run<MirroredStrategy>(even(replicas, 3), make, momentum);
  }
  at::set_num_threads(before);
}

TEST(StrategyFunctionModules, DrawTheRandomNumbersOfRun) {
  for (const std::size_t replicas : {1, 2, 3}) {
    MirroredStrategy strategy(testing::cpu_devices(static_cast<int>(replicas)));
    const auto model = strategy.replicate(
        [] { return torch::nn::Sequential(torch::nn::Linear(6, 8), torch::nn::Dropout(0.5)); });
    const auto step = [&](const at::Tensor& x) { return model->forward(x) + torch::rand({8}); };
    const auto traced = strategy.function(step);
    const at::Tensor x = torch::randn({4, 6});
    for (std::uint64_t seed = 0; seed < 3; ++seed) {
      torch::manual_seed(seed);
      const auto wanted = strategy.run(step, x);
      const at::Tensor after = torch::rand({2});
      torch::manual_seed(seed);
      const auto got = traced(x);
      EXPECT_TRUE(torch::rand({2}).equal(after));
      for (std::size_t r = 0; r < replicas; ++r)
        EXPECT_TRUE(strategy.local_results(got)[r].equal(strategy.local_results(wanted)[r]));
    }
  }
}

// The other replica draws no random number, and still has the seed of its number.
TEST(StrategyFunctionModules, DrawRandomNumbersInOneReplicaAlone) {
  MirroredStrategy two({"CPU:0", "CPU:1"});
  const auto step = [](const at::Tensor& x) {
    const bool is_first = get_replica_context()->replica_id_in_sync_group() == 0;
    return is_first ? x + 1 : x + torch::rand({3});
  };
  const auto traced = two.function(step);
  torch::manual_seed(5);
  const auto wanted = two.run(step, torch::ones({3}));
  torch::manual_seed(5);
  const auto got = traced(torch::ones({3}));
  for (const std::size_t r : {0, 1})
    EXPECT_TRUE(two.local_results(got)[r].equal(two.local_results(wanted)[r]));
}

TEST(StrategyFunctionModules, BeginInTheModesOfTheFactory) {
  MirroredStrategy two({"CPU:0", "CPU:1"});
  const auto model = two.replicate([] { return Cnn(); });
  const auto evaluate = two.function([&](const at::Tensor& x) {
    model->eval();
    return model->forward(x);
  });
  const auto train = two.function([&](const at::Tensor& x) { return model->forward(x); });
  const at::Tensor x = torch::randn({4, 6});
  evaluate(x);
  const at::Tensor before = model.variables().at(6).read().clone();
  train(x);
  evaluate(x);
  EXPECT_FALSE(model.variables().at(6).read().equal(before));  // a running statistic
  EXPECT_TRUE(two.run([&] { return torch::tensor(model->is_training()); })[0].item<bool>());
}

TEST(StrategyFunctionModules, TraceAgainForAnotherModeOfTheModule) {
  MirroredStrategy one({"CPU:0"});
  std::vector<Cnn> made;
  const auto model = one.replicate([&] {
    made.emplace_back();
    return made.back();
  });
  const auto step = [&](const at::Tensor& x) { return model->forward(x); };
  const auto traced = one.function(step);
  const at::Tensor x = torch::randn({4, 6});
  traced(x);
  made.back()->eval();
  EXPECT_TRUE(traced(x).value().equal(one.run(step, x).value()));
  EXPECT_EQ(traced.traces(), 2U);
}

TEST(StrategyFunctionModules, FollowTheModeOfTheCaller) {
  MirroredStrategy two({"CPU:0", "CPU:1"});
  const auto model = two.replicate([] { return Mlp(); });
  const auto step = [&](const at::Tensor& x) { return model->forward(x); };
  const auto traced = two.function(step);
  const at::Tensor x = torch::randn({4, 6});
  for (int i = 0; i < 2; ++i) {
    const torch::NoGradGuard no_grad;
    EXPECT_TRUE(traced(x)[1].equal(two.run(step, x)[1]));
  }
  traced(x);
  EXPECT_EQ(traced.traces(), 2U);
}

TEST(StrategyFunctionModules, RefuseAModuleThatIsNoneOfTheStrategy) {
  MirroredStrategy two({"CPU:0", "CPU:1"});
  torch::nn::Linear own(6, 2);
  const auto traced = two.function([&](const at::Tensor& x) { return own->forward(x); });
  EXPECT_THAT(
      [&] {
        traced(torch::ones({3, 6}));
      },
      throws_error(ErrorCode::invalid_argument, "is no registered variable"));
  OneDeviceStrategy other;
  const auto theirs = other.replicate([] { return Mlp(); });
  const auto mixed = two.function([&](const at::Tensor& x) { return theirs->forward(x); });
  EXPECT_THAT(
      [&] {
        mixed(torch::ones({3, 6}));
      },
      throws_error(ErrorCode::failed_precondition, "mixing strategies: expected 'one_device'"));
}

}  // namespace
}  // namespace cohort
