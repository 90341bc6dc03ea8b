// SPDX-License-Identifier: Apache-2.0
// Ordinary modules on several replicas: the numbers of one process with the same global batches.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <atomic>
#include <latch>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "cohort/optimizer/optimizers.h"
#include "cohort/strategy/synchronous_strategy.h"
#include "cohort/testing/throws_error.h"

namespace cohort {
namespace {

using testing::throws_error;

struct NetImpl : torch::nn::Module {
  NetImpl() {
    first = register_module("first", torch::nn::Linear(6, 8));
    norm = register_module("norm", torch::nn::BatchNorm1d(8));
    last = register_module("last", torch::nn::Linear(8, 3));
  }
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor hidden = first->forward(x);
    return last->forward((uses_norm ? norm->forward(hidden) : hidden).tanh());
  }
  torch::nn::Linear first{nullptr}, last{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
  bool uses_norm = false;
};
TORCH_MODULE(Net);

at::Tensor batch(int step) {
  torch::manual_seed(static_cast<std::uint64_t>(step) + 1);
  return torch::randn({12, 6}, torch::kDouble);
}

Net make_net() {
  torch::manual_seed(1);
  Net net;
  net->to(torch::kDouble);
  return net;
}

// The module of the snapshot would have been the strategy's own.
TEST(MirroredModule, AFactoryThatReturnsOneModuleHasNoSnapshot) {
  MirroredStrategy one({"CPU:0"});
  const Net net = make_net();
  const auto model = one.replicate([&] { return net; });
  EXPECT_THAT([&] { model.snapshot(); },
              throws_error(ErrorCode::invalid_argument, "make the module inside the factory"));
}

// Regression: all modules of one class began with the same values, whatever the seed was.
TEST(MirroredModule, InitialValuesFollowTheSeedOfTheProgramAndTheNumberOfTheModule) {
  const auto drawn = [](std::uint64_t seed, const std::vector<std::string>& devices) {
    MirroredStrategy strategy(devices);
    torch::manual_seed(seed);
    const at::Tensor next = torch::rand({4});
    torch::manual_seed(seed);
    const auto make = [] { return torch::nn::Linear(3, 2); };
    const auto first = strategy.replicate(make, {.name = "first"});
    const auto second = strategy.replicate(make, {.name = "second"});
    EXPECT_TRUE(torch::rand({4}).equal(next)) << "the program's own numbers stay";
    const auto weights = strategy.run([&] { return first->weight.detach(); });
    for (std::size_t i = 0; i < weights.size(); ++i)
      EXPECT_TRUE(weights[i].equal(first.parameters()[0].read()));
    return std::vector<at::Tensor>{first.parameters()[0].read(), second.parameters()[0].read()};
  };
  const auto values = drawn(7, {"CPU:0"}), again = drawn(7, {"CPU:0", "CPU:1"});
  EXPECT_TRUE(again[0].equal(values[0]));
  EXPECT_TRUE(again[1].equal(values[1]));
  EXPECT_FALSE(values[1].equal(values[0]));
  EXPECT_FALSE(drawn(8, {"CPU:0"})[0].equal(values[0]));
}

TEST(MirroredModule, AnInitializerFollowsTheSeedOfTheProgram) {
  MirroredStrategy strategy({"CPU:0"});
  const auto drawn = [&](const std::string& name) {
    return strategy.variable(name, TensorSpec{at::kFloat, {{5}}}, Initializer::random_normal(0, 1))
        .read();
  };
  torch::manual_seed(7);
  const at::Tensor first = drawn("w");
  EXPECT_TRUE(drawn("w").equal(first));
  torch::manual_seed(8);
  EXPECT_FALSE(drawn("w").equal(first));
}

std::vector<at::Tensor> trained(Strategy& strategy, const std::vector<std::int64_t>& sizes) {
  const auto model = strategy.replicate(make_net);
  const Adam adam(model.parameters(), {.learning_rate = 0.01});
  for (int step = 0; step < 20; ++step) {
    std::vector<at::Tensor> parts;
    std::int64_t begin = 0;
    for (const std::int64_t size : sizes) {
      parts.push_back(batch(step).narrow(0, begin, size));
      begin += size;
    }
    strategy.run(
        [&](const at::Tensor& x) { adam.minimize(model->forward(x).square().mean(1).sum() / 12); },
        PerReplica<at::Tensor>(parts));
  }
  std::vector<at::Tensor> values;
  for (const Variable& variable : model.variables()) values.push_back(variable.read().detach());
  return values;
}

TEST(MirroredModules, TrainAsOneProcessDoes) {
  OneDeviceStrategy one("CPU:0");
  const std::vector<at::Tensor> expected = trained(one, {12});
  MirroredStrategy two({"CPU:0", "CPU:1"}), three({"CPU:0", "CPU:1", "CPU:2"});
  const std::vector<std::vector<at::Tensor>> others = {trained(two, {6, 6}), trained(two, {11, 1}),
                                                       trained(two, {12, 0}),
                                                       trained(three, {3, 2, 7})};
  for (const std::vector<at::Tensor>& got : others) {
    ASSERT_EQ(got.size(), expected.size());
    for (std::size_t i = 0; i < got.size(); ++i)
      EXPECT_TRUE(at::allclose(got[i], expected[i], 1e-9, 1e-9)) << i;
  }
}

TEST(MirroredModules, BeginWithEqualWeightsAndEndEqual) {
  MirroredStrategy two({"CPU:0", "CPU:1"});
  const auto model = two.replicate(make_net);
  const SGD sgd(model.parameters(), {.learning_rate = 0.1});
  for (int step = 0; step < 3; ++step) {
    const auto weights = two.run([&] {
      at::Tensor before = model->last->weight.detach().clone();
      sgd.minimize(model->forward(torch::randn({4, 6}, torch::kDouble)).square().sum());
      return before;
    });
    EXPECT_TRUE(weights[0].equal(weights[1])) << "step " << step;
  }
  const auto weights = two.run([&] { return model->last->weight.detach().clone(); });
  EXPECT_TRUE(weights[0].equal(weights[1]));
}

TEST(MirroredModules, BuffersAreTheMeanOfTheReplicas) {
  MirroredStrategy two({"CPU:0", "CPU:1"});
  const auto model = two.replicate([] {
    Net net = make_net();
    net->uses_norm = true;
    return net;
  });
  const at::Tensor x = batch(0);
  const auto means = two.run(
      [&](const at::Tensor& part) {
        model->forward(part);
        return model->norm->running_mean.clone();
      },
      PerReplica<at::Tensor>({x.narrow(0, 0, 4), x.narrow(0, 4, 8)}));
  EXPECT_FALSE(means[0].equal(means[1]));
  const Net trained = model.snapshot();
  EXPECT_TRUE(at::allclose(trained->norm->running_mean, (means[0] + means[1]) / 2));
  EXPECT_EQ(trained->norm->num_batches_tracked.item<std::int64_t>(), 1);
}

TEST(MirroredModules, ModesEndWithTheRun) {
  MirroredStrategy two({"CPU:0", "CPU:1"});
  const auto model = two.replicate(make_net);
  two.run([&] { model->eval(); });
  two.run([&] { EXPECT_TRUE(model->is_training()); });
}

// Counts how often the library reads its mode.
struct WatchedImpl : torch::nn::Linear::ContainedType {
  WatchedImpl() : LinearImpl(1, 1) {}
  bool is_training() const noexcept override {
    ++reads;
    return LinearImpl::is_training();
  }
  static inline std::atomic<std::size_t> reads = 0;
};
TORCH_MODULE(Watched);

// How often modes of modules are read, of which `count` exist.
struct ModeReads {
  std::size_t in_replicate, in_empty_run, in_run_of_one;
  bool operator==(const ModeReads&) const = default;
};
ModeReads mode_reads(std::size_t count) {
  const auto reads_of = [](const auto& call) {
    const std::size_t before = WatchedImpl::reads;
    call();
    return WatchedImpl::reads - before;
  };
  MirroredStrategy two({"CPU:0", "CPU:1"});
  std::vector<Replicated<Watched>> models;
  const auto make = [&] {
    for (std::size_t i = 0; i < count; ++i)
      models.push_back(two.replicate([] { return Watched(); }, {.name = std::to_string(i)}));
  };
  return {.in_replicate = reads_of(make) / count,
          .in_empty_run = reads_of([&] { two.run([] {}); }),
          .in_run_of_one = reads_of([&] { two.run([&] { models.front()->eval(); }); })};
}

// Regression: each replicate() and each run read the modes of all modules.
TEST(MirroredModules, ARunReadsTheModesOfTheModulesThatItUses) {
  EXPECT_EQ(mode_reads(4), mode_reads(40));
  EXPECT_EQ(mode_reads(4).in_empty_run, 0U);
  EXPECT_GT(mode_reads(4).in_run_of_one, 0U);
}

// Regression: the run that ended first set the modes back for the other one.
TEST(MirroredModules, ModesOfRunsAtTheSameTimeEndWithTheLast) {
  MirroredStrategy two({"CPU:0", "CPU:1"});
  const auto model = two.replicate(make_net);
  std::latch has_begun(2), has_ended(1);
  std::thread other([&] {
    has_begun.wait();
    two.run([&] { model->eval(); });
    has_ended.count_down();
  });
  two.run([&] {
    model->eval();
    has_begun.count_down();
    has_ended.wait();
    EXPECT_FALSE(model->is_training());
  });
  other.join();
  two.run([&] { EXPECT_TRUE(model->is_training()); });
}

// Regression: modes were found by the place of their module in a list.
TEST(MirroredModules, ModesEndWithTheRunAlsoIfAModuleIsMadeInIt) {
  MirroredStrategy two({"CPU:0", "CPU:1"});
  std::optional first(two.replicate(make_net, {.name = "first"}));
  const auto second = two.replicate(make_net, {.name = "second"});
  std::latch has_begun(2), is_made(1);
  std::thread other([&] {
    has_begun.wait();
    first.reset();
    two.replicate(make_net, {.name = "third"});
    is_made.count_down();
  });
  two.run([&] {
    second->eval();
    has_begun.count_down();
    is_made.wait();
  });
  other.join();
  two.run([&] { EXPECT_TRUE(second->is_training()); });
}

// Regression: the weights of replica 0 were returned.
TEST(MirroredModules, OfDifferentWeightsHaveNoSnapshot) {
  MirroredStrategy two({"CPU:0", "CPU:1"});
  const auto model = two.replicate(make_net);
  for (int i = 0; i < 2; ++i) two.run([] {});
  two.run([&] {
    const torch::NoGradGuard no_grad;
    if (get_replica_context()->local_replica_id() == 1) model->last->weight.mul_(2);
  });
  EXPECT_THAT([&] { model.snapshot(); },
              throws_error(ErrorCode::failed_precondition, "'model/last.weight' in all replicas"));
  model.load(make_net());
  model.snapshot();
}

// Regression: the next strategy at the address of the first one was taken for it.
TEST(MirroredModules, OfAStrategyThatHasEndedAreRefused) {
  std::optional<MirroredStrategy> strategy;
  strategy.emplace(std::vector<std::string>{"CPU:0", "CPU:1"});
  const auto model = strategy->replicate(make_net);
  const Variable variable = strategy->variable("v", at::zeros({}));
  strategy.emplace(std::vector<std::string>{"CPU:0", "CPU:1", "CPU:2"});
  EXPECT_THAT([&] { strategy->run([&] { model->forward(batch(0)); }); },
              throws_error(ErrorCode::failed_precondition, ""));
  EXPECT_THAT([&] { strategy->run([&] { variable.tensor(); }); },
              throws_error(ErrorCode::failed_precondition, "variable.tensor"));
  EXPECT_EQ(variable.read().item<float>(), 0) << "outside, the variable stays usable";
}

TEST(MirroredModules, LoadGivesEveryReplicaTheValues) {
  MirroredStrategy two({"CPU:0", "CPU:1"});
  const auto model = two.replicate(make_net);
  Net other = make_net();
  {
    const torch::NoGradGuard no_grad;
    for (at::Tensor& parameter : other->parameters()) parameter.fill_(0.5);
  }
  model.load(other);
  two.run([&] {
    for (const at::Tensor& parameter : model->parameters())
      EXPECT_TRUE(parameter.eq(0.5).all().item<bool>());
  });
}

TEST(MirroredModules, AreUsedInsideRunOnly) {
  MirroredStrategy two({"CPU:0", "CPU:1"});
  const auto model = two.replicate(make_net);
  EXPECT_THAT([&] { model->forward(batch(0)); },
              throws_error(ErrorCode::failed_precondition, "snapshot()"));
  EXPECT_THAT([&] { two.run([&] { model.snapshot(); }); },
              throws_error(ErrorCode::failed_precondition, "between two runs"));
}

TEST(MirroredModules, OfAnotherStrategyAreRefused) {
  MirroredStrategy two({"CPU:0", "CPU:1"}), other({"CPU:0", "CPU:1"});
  const auto model = two.replicate(make_net);
  EXPECT_THAT([&] { other.run([&] { model->forward(batch(0)); }); },
              throws_error(ErrorCode::failed_precondition, "mixing strategies"));
  const StrategyScope scope = other.scope();
  EXPECT_THAT([&] { model->forward(batch(0)); },
              throws_error(ErrorCode::failed_precondition, "mixing strategies"));
}

TEST(MirroredModules, OfAFactoryThatMakesDifferentOnesAreRefused) {
  MirroredStrategy two({"CPU:0", "CPU:1"});
  int size = 3;
  EXPECT_THAT([&] { two.replicate([&] { return torch::nn::Linear(2, ++size); }); },
              throws_error(ErrorCode::invalid_argument,
                           "got 'weight' float32[4, 2] for replica 0 and 'weight' float32[5, 2]"));
  const torch::nn::Linear shared(2, 3);
  EXPECT_THAT([&] { two.replicate([&] { return shared; }); },
              throws_error(ErrorCode::invalid_argument, "make the module inside the factory"));
}

// The message of other numbers of tensors named the same tensor twice.
TEST(MirroredModules, TheErrorNamesWhatDiffersBetweenReplicas) {
  MirroredStrategy two({"CPU:0", "CPU:1"});
  const auto refused = [&](const auto& module_of, const std::string& got) {
    int calls = 0;
    EXPECT_THAT([&] { two.replicate([&] { return module_of(++calls == 1); }); },
                throws_error(ErrorCode::invalid_argument, "got " + got + "; the factory"));
  };
  const auto linear = [](bool has_bias) {
    return torch::nn::Linear(torch::nn::LinearOptions(2, 3).bias(has_bias));
  };
  refused([&](bool is_first) { return linear(is_first); },
          "'bias' float32[3] for replica 0 and 1 parameters and buffers for replica 1");
  refused([&](bool is_first) { return linear(!is_first); },
          "1 parameters and buffers for replica 0 and 'bias' float32[3] for replica 1");
  refused(
      [](bool is_first) {
        torch::nn::Sequential net;
        net->push_back(is_first ? "a" : "b", torch::nn::Linear(2, 3));
        return net;
      },
      "'a.weight' float32[3, 2] for replica 0 and 'b.weight' float32[3, 2] for replica 1");
  refused(
      [&](bool is_first) {
        torch::nn::Linear frozen = linear(false);
        frozen->weight.requires_grad_(is_first);
        return frozen;
      },
      "'weight' float32[3, 2] for replica 0 and 'weight' float32[3, 2], which is frozen, for "
      "replica 1");
}

}  // namespace
}  // namespace cohort
