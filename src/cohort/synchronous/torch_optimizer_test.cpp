// SPDX-License-Identifier: Apache-2.0
// Optimizers of LibTorch on several replicas: the numbers of one process with the whole batch.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <atomic>
#include <memory>
#include <sstream>
#include <stdexcept>

#include "cohort/strategy/synchronous_strategy.h"
#include "cohort/strategy/torch_optimizer.h"
#include "cohort/synchronous/whole_batch_fixture.h"
#include "cohort/testing/throws_error.h"

namespace cohort {
namespace {

using testing::parts;
using testing::Sizes;
using testing::Tensors;
using testing::throws_error;
using testing::values_of;

struct PartlyUsedImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) { return last->forward(first->forward(x).tanh()); }
  torch::nn::Linear first{register_module("first", torch::nn::Linear(5, 6))};
  torch::nn::Linear last{register_module("last", torch::nn::Linear(6, 3))};
  torch::nn::Linear unused{register_module("unused", torch::nn::Linear(2, 2))};
};
TORCH_MODULE(PartlyUsed);

PartlyUsed make_partly_used() { return PartlyUsed(); }

at::Tensor mlp_batch(int step) {
  torch::manual_seed(static_cast<std::uint64_t>(step) + 1);
  return torch::randn({12, 5});
}

at::Tensor losses_of(PartlyUsedImpl& net, const at::Tensor& x) {
  return net.forward(x).square().mean(1);
}

void expect_close(const Tensors& got, const Tensors& expected) {
  testing::expect_close(got, expected, 1e-6);
}

// The parameters of all replicas are equal bit by bit.
template <class M>
void expect_equal_copies(Strategy& strategy, const Replicated<M>& model) {
  const auto copies = strategy.run([&] {
    Tensors flat;
    for (const at::Tensor& each : model->parameters()) flat.push_back(each.detach().flatten());
    return at::cat(flat);
  });
  for (std::size_t i = 1; i < copies.size(); ++i) EXPECT_TRUE(copies[i].equal(copies[0])) << i;
}

// Regression: the replica that had failed kept its gradients, and the other one lost them.
TEST(TorchOptimizerTraining, DoesNotUseGradientsOfAFailedRun) {
  MirroredStrategy strategy({"CPU:0", "CPU:1"});
  const auto model = strategy.replicate(make_partly_used);
  const TorchOptimizer optimizer(model, [](Tensors parameters) {
    return torch::optim::SGD(std::move(parameters), torch::optim::SGDOptions(0.1));
  });
  PartlyUsed alone = model.snapshot();
  const auto train = [&](int number, bool clears, bool fails) {
    strategy.run(
        [&](const at::Tensor& x) {
          if (clears) optimizer.zero_grad();
          average_loss(losses_of(*model, x)).backward();
          if (fails && get_replica_context()->local_replica_id() == 1)
            throw std::runtime_error("bad rows");
          optimizer.step();
        },
        parts(mlp_batch(number), {6, 6}));
  };
  for (const bool clears : {false, true}) {
    EXPECT_THROW(train(0, clears, true), std::runtime_error);
    train(1, false, false);
    losses_of(*alone, mlp_batch(1)).mean().backward();
    torch::optim::SGD theirs(alone->parameters(), torch::optim::SGDOptions(0.1));
    theirs.step();
    theirs.zero_grad();
    expect_close(values_of(model.variables()), alone->parameters());
  }
  EXPECT_THROW(train(0, false, true), std::runtime_error);
  strategy.run([&](const at::Tensor& x) { optimizer.minimize(average_loss(losses_of(*model, x))); },
               parts(mlp_batch(2), {6, 6}));
  losses_of(*alone, mlp_batch(2)).mean().backward();
  torch::optim::SGD theirs(alone->parameters(), torch::optim::SGDOptions(0.1));
  theirs.step();
  expect_close(values_of(model.variables()), alone->parameters());
}

// 20 steps with a factory, on several replicas and in a loop of LibTorch alone.
template <class Factory>
void expect_that_of_one_process(Factory factory) {
  std::vector<Sizes> partitions = testing::partitions();
  partitions.push_back({12});
  for (const Sizes& sizes : partitions) {
    MirroredStrategy strategy(testing::devices_for(sizes));
    const auto model = strategy.replicate(make_partly_used);
    PartlyUsed alone = model.snapshot();
    auto theirs = factory(alone->parameters());
    const TorchOptimizer optimizer(model, factory);
    for (int step = 0; step < 20; ++step) {
      theirs.zero_grad();
      losses_of(*alone, mlp_batch(step)).mean().backward();
      theirs.step();
      strategy.run(
          [&](const at::Tensor& x) { optimizer.minimize(average_loss(losses_of(*model, x))); },
          parts(mlp_batch(step), sizes));
    }
    SCOPED_TRACE("first part " + std::to_string(sizes[0]));
    expect_close(values_of(model.parameters()), alone->parameters());
    expect_equal_copies(strategy, model);
  }
}

TEST(TorchOptimizerTraining, WithSgdIsThatOfOneProcess) {
  expect_that_of_one_process([](Tensors parameters) {
    return torch::optim::SGD(std::move(parameters),
                             torch::optim::SGDOptions(0.05).momentum(0.9).weight_decay(0.01));
  });
}

TEST(TorchOptimizerTraining, WithAdamIsThatOfOneProcess) {
  expect_that_of_one_process([](Tensors parameters) {
    return torch::optim::Adam(std::move(parameters), torch::optim::AdamOptions(1e-3).amsgrad(true));
  });
}

TEST(TorchOptimizerTraining, WithAdamWIsThatOfOneProcess) {
  expect_that_of_one_process([](Tensors parameters) {
    return torch::optim::AdamW(std::move(parameters), torch::optim::AdamWOptions(1e-3));
  });
}

TEST(TorchOptimizerTraining, WithRMSpropIsThatOfOneProcess) {
  expect_that_of_one_process([](Tensors parameters) {
    return torch::optim::RMSprop(std::move(parameters),
                                 torch::optim::RMSpropOptions(1e-3).momentum(0.5));
  });
}

TEST(TorchOptimizerTraining, WithAdagradIsThatOfOneProcess) {
  expect_that_of_one_process([](Tensors parameters) {
    return torch::optim::Adagrad(std::move(parameters), torch::optim::AdagradOptions(0.01));
  });
}

class TorchOptimizers : public ::testing::Test {
 protected:
  static torch::optim::SGD sgd(Tensors parameters) {
    return torch::optim::SGD(std::move(parameters), torch::optim::SGDOptions(0.1));
  }
  MirroredStrategy two_{{"CPU:0", "CPU:1"}};
  const Replicated<PartlyUsed> model_ = two_.replicate(make_partly_used);
};

TEST_F(TorchOptimizers, ChangeTheirRateInAllReplicas) {
  TorchOptimizer optimizer(model_, sgd);
  EXPECT_EQ(optimizer.size(), 2U);
  optimizer.for_each([](torch::optim::SGD& each) {
    for (auto& group : each.param_groups())
      static_cast<torch::optim::SGDOptions&>(group.options()).lr(0);
  });
  const Tensors before = values_of(model_.parameters());
  two_.run([&](const at::Tensor& x) { optimizer.minimize(losses_of(*model_, x).sum()); },
           parts(mlp_batch(0), {6, 6}));
  expect_close(values_of(model_.parameters()), before);
  EXPECT_EQ(optimizer.per_replica(1).param_groups().size(), 1U);
}

TEST_F(TorchOptimizers, ReduceOnceForSeveralBackwardPasses) {
  PartlyUsed alone = model_.snapshot();
  torch::optim::SGD theirs = sgd(alone->parameters());
  const TorchOptimizer optimizer(model_, sgd);
  for (int step = 0; step < 3; ++step) {
    const at::Tensor whole = mlp_batch(step);
    theirs.zero_grad();
    losses_of(*alone, whole).mean().backward();
    torch::nn::utils::clip_grad_norm_(alone->parameters(), 0.05);
    theirs.step();
    two_.run(
        [&](const at::Tensor& x) {
          // Replica 0 has one pass, replica 1 has three; they meet in step() alone.
          for (const at::Tensor& some : x.split(4))
            average_loss(losses_of(*model_, some), {.global_batch_size = 12}).backward();
          optimizer.step([](torch::optim::SGD& own) {
            torch::nn::utils::clip_grad_norm_(own.param_groups()[0].params(), 0.05);
          });
          EXPECT_FALSE(model_->first->weight.grad().defined());
        },
        parts(whole, {3, 9}));
  }
  expect_close(values_of(model_.parameters()), alone->parameters());
  expect_equal_copies(two_, model_);
}

// Regression: the gradients of replica 1 were lost.
TEST_F(TorchOptimizers, TakeTheGradientOfAValueThatWasReadBeforeTheRun) {
  const TorchOptimizer optimizer(model_, sgd);
  PartlyUsed alone = model_.snapshot();
  torch::optim::SGD theirs = sgd(alone->parameters());
  const auto loss = [](PartlyUsedImpl& net, const at::Tensor& weight, const at::Tensor& x) {
    return (torch::linear(x, weight, net.first->bias)).square().sum();
  };
  const at::Tensor whole = mlp_batch(0);
  loss(*alone, alone->first->weight, whole).backward();
  theirs.step();
  const at::Tensor weight = model_.parameters()[0].tensor();
  ASSERT_EQ(weight.sizes(), alone->first->weight.sizes());
  two_.run([&](const at::Tensor& x) { optimizer.minimize(loss(*model_, weight, x)); },
           parts(whole, {5, 7}));
  expect_close(values_of(model_.parameters()), alone->parameters());
}

// Regression: a copy did not know the groups that were added later.
TEST_F(TorchOptimizers, ACopyIsTheSameOptimizer) {
  TorchOptimizer optimizer(model_, [](Tensors parameters) {
    return torch::optim::SGD(Tensors{parameters[0]}, torch::optim::SGDOptions(0.1));
  });
  const TorchOptimizer copy = optimizer;
  std::size_t replica = 0;
  optimizer.for_each([&](torch::optim::SGD& each) {
    Tensors rest;
    two_.run([&] {
      if (get_replica_context()->local_replica_id() == static_cast<int>(replica))
        rest = {model_->first->bias};
    });
    each.add_param_group(torch::optim::OptimizerParamGroup(rest));
    ++replica;
  });
  const Tensors before = values_of(model_.parameters());
  two_.run([&](const at::Tensor& x) { copy.minimize(losses_of(*model_, x).sum()); },
           parts(mlp_batch(0), {5, 7}));
  EXPECT_FALSE(values_of(model_.parameters())[1].equal(before[1]));
  expect_equal_copies(two_, model_);
}

TEST_F(TorchOptimizers, MakeNoStepAfterAForEachThatFailed) {
  TorchOptimizer optimizer(model_, sgd);
  int calls = 0;
  EXPECT_THROW(optimizer.for_each([&](torch::optim::SGD&) {
    if (++calls == 2) throw std::runtime_error("no");
  }),
               std::runtime_error);
  const auto step = [&] {
    two_.run([&](const at::Tensor& x) { optimizer.minimize(losses_of(*model_, x).sum()); },
             parts(mlp_batch(0), {6, 6}));
  };
  EXPECT_THAT(step, throws_error(ErrorCode::failed_precondition,
                                 "call for_each() with a function that does the same"));
  optimizer.for_each([](torch::optim::SGD&) {});
  step();
}

TEST_F(TorchOptimizers, ForgetGradientsOnRequest) {
  const TorchOptimizer optimizer(model_, sgd);
  two_.run([&] {
    losses_of(*model_, torch::ones({2, 5})).sum().backward();
    EXPECT_TRUE(model_->first->weight.grad().defined());
    optimizer.zero_grad();
    EXPECT_FALSE(model_->first->weight.grad().defined());
  });
}

TEST_F(TorchOptimizers, LeaveParametersWithoutAGradientUnchanged) {
  // With weight decay, a gradient of zeros would change them.
  const TorchOptimizer optimizer(model_, [](Tensors parameters) {
    return torch::optim::SGD(std::move(parameters),
                             torch::optim::SGDOptions(0.1).weight_decay(0.5));
  });
  const Tensors before = values_of(model_.parameters());
  two_.run([&](const at::Tensor& x) { optimizer.minimize(losses_of(*model_, x).sum()); },
           parts(mlp_batch(0), {6, 6}));
  const Tensors after = values_of(model_.parameters());
  EXPECT_FALSE(after[0].equal(before[0]));
  EXPECT_TRUE(after[4].equal(before[4])) << "of the layer that the loss does not use";
}

TEST_F(TorchOptimizers, TakeAGradientOfSomeReplicasForTheSum) {
  const TorchOptimizer optimizer(model_, sgd);
  PartlyUsed alone = model_.snapshot();
  torch::optim::SGD theirs = sgd(alone->parameters());
  const auto loss = [](PartlyUsedImpl& net, bool uses_all) {
    const at::Tensor some = losses_of(net, torch::ones({2, 5})).sum();
    return uses_all ? some + net.unused->forward(torch::ones({1, 2})).sum() : some;
  };
  (loss(*alone, true) + loss(*alone, false)).backward();
  theirs.step();
  two_.run(
      [&] { optimizer.minimize(loss(*model_, get_replica_context()->local_replica_id() == 1)); });
  expect_close(values_of(model_.parameters()), alone->parameters());
  expect_equal_copies(two_, model_);
}

TEST_F(TorchOptimizers, TrainSomeOfTheParametersInGroups) {
  // The bias of the first layer does not decay; the others belong to another optimizer.
  const auto of_first = [](const Tensors& parameters) {
    std::vector<torch::optim::OptimizerParamGroup> groups;
    groups.emplace_back(Tensors{parameters[0]},
                        std::make_unique<torch::optim::SGDOptions>(
                            torch::optim::SGDOptions(0.1).weight_decay(0.1)));
    groups.emplace_back(Tensors{parameters[1]});
    return std::make_unique<torch::optim::SGD>(std::move(groups), torch::optim::SGDOptions(0.2));
  };
  const auto of_last = [](const Tensors& parameters) {
    return sgd({parameters[2], parameters[3]});
  };
  const TorchOptimizer first(model_, of_first), last(model_, of_last);
  PartlyUsed alone = model_.snapshot();
  const auto their_first = of_first(alone->parameters());
  torch::optim::SGD their_last = of_last(alone->parameters());
  for (int step = 0; step < 3; ++step) {
    their_first->zero_grad();
    their_last.zero_grad();
    losses_of(*alone, mlp_batch(step)).mean().backward();
    their_first->step();
    their_last.step();
    two_.run(
        [&](const at::Tensor& x) {
          const at::Tensor loss = average_loss(losses_of(*model_, x));
          first.minimize(loss);  // each takes its own gradients of the one loss
          last.minimize(loss);
        },
        parts(mlp_batch(step), {6, 6}));
  }
  expect_close(values_of(model_.parameters()), alone->parameters());
  expect_equal_copies(two_, model_);
}

TEST_F(TorchOptimizers, SumTheRowsOfSparseGradients) {
  const auto make = [] {
    return torch::nn::Embedding(torch::nn::EmbeddingOptions(7, 3).sparse(true));
  };
  const auto model = two_.replicate(make, {.name = "embedding"});
  auto alone = model.snapshot();
  torch::optim::SGD theirs = sgd(alone->parameters());
  const TorchOptimizer optimizer(model, sgd);
  const at::Tensor rows = torch::tensor({1, 4, 4, 6, 1, 0});
  alone->forward(rows).square().sum().backward();
  theirs.step();
  two_.run([&](const at::Tensor& some) { optimizer.minimize(model->forward(some).square().sum()); },
           parts(rows, {2, 4}));
  expect_close(values_of(model.parameters()), alone->parameters());
  expect_equal_copies(two_, model);
}

TEST_F(TorchOptimizers, HaveOneStateToSave) {
  const auto adam = [](Tensors parameters) {
    return torch::optim::Adam(std::move(parameters), torch::optim::AdamOptions(0.1));
  };
  const auto step = [&](const auto& optimizer) {
    two_.run([&](const at::Tensor& x) { optimizer.minimize(average_loss(losses_of(*model_, x))); },
             parts(mlp_batch(0), {6, 6}));
  };
  TorchOptimizer optimizer(model_, adam);
  step(optimizer);
  std::ostringstream file;
  torch::save(optimizer.per_replica(0), file);
  const PartlyUsed saved = model_.snapshot();
  step(optimizer);
  const Tensors expected = values_of(model_.parameters());

  model_.load(saved);
  TorchOptimizer restored(model_, adam);
  restored.for_each([&](torch::optim::Adam& each) {
    std::istringstream again(file.str());
    torch::load(each, again);
  });
  step(restored);
  expect_close(values_of(model_.parameters()), expected);
}

TEST_F(TorchOptimizers, RefuseCallsElsewhere) {
  TorchOptimizer optimizer(model_, sgd);
  const at::Tensor loss = torch::ones({}, at::requires_grad());
  const auto outside = throws_error(ErrorCode::failed_precondition, "in a replica of the module's");
  EXPECT_THAT([&] { optimizer.minimize(loss); }, outside);
  EXPECT_THAT([&] { optimizer.step(); }, outside);
  EXPECT_THAT([&] { optimizer.zero_grad(); }, outside);
  MirroredStrategy other({"CPU:0", "CPU:1"});
  EXPECT_THAT([&] { other.run([&] { optimizer.minimize(loss); }); },
              throws_error(ErrorCode::failed_precondition, "'model/first.weight'"));
  EXPECT_THAT([&] { two_.run([&] { optimizer.for_each([](torch::optim::SGD&) {}); }); },
              throws_error(ErrorCode::failed_precondition, "between two runs"));
  EXPECT_THROW(optimizer.per_replica(2), std::out_of_range);
}

TEST_F(TorchOptimizers, RefuseLossesThatTheyCannotReduce) {
  const TorchOptimizer optimizer(model_, sgd);
  const auto minimize = [&](const std::function<at::Tensor()>& loss) {
    two_.run([&] { optimizer.minimize(loss()); });
  };
  EXPECT_THAT([&] { minimize([] { return torch::ones({3}); }); },
              throws_error(ErrorCode::invalid_argument, "floating-point scalar as loss"));
  EXPECT_THAT([&] { minimize([] { return torch::ones({}); }); },
              throws_error(ErrorCode::invalid_argument, "without a gradient"));
  EXPECT_THAT([&] { minimize([] { return torch::ones({}, at::requires_grad()) * 2; }); },
              throws_error(ErrorCode::invalid_argument, "got none in any (was it computed with"));
}

TEST_F(TorchOptimizers, RefuseStepsThatReplicasDoNotMakeAlike) {
  const TorchOptimizer first(model_, sgd), second(model_, sgd);
  const Tensors before = values_of(model_.parameters());
  const auto loss = [&] { return losses_of(*model_, torch::ones({2, 5})).sum(); };
  const auto is_first = [] { return get_replica_context()->local_replica_id() == 0; };
  EXPECT_THAT([&] { two_.run([&] { (is_first() ? first : second).minimize(loss()); }); },
              throws_error(ErrorCode::invalid_argument, "the same optimizer in all replicas"));
  EXPECT_THAT(
      [&] {
        two_.run([&] {
          if (is_first()) first.minimize(loss());
        });
      },
      throws_error(ErrorCode::failed_precondition, ""));
  expect_close(values_of(model_.parameters()), before);
}

// Regression: the gradients of the other replicas alone trained the parameter.
TEST_F(TorchOptimizers, RefuseAParameterThatIsFrozenInOneReplicaAlone) {
  const TorchOptimizer optimizer(model_, sgd);
  const Tensors before = values_of(model_.parameters());
  const auto loss = [&] { return losses_of(*model_, torch::ones({2, 5})).sum(); };
  const auto minimize = [&] { two_.run([&] { optimizer.minimize(loss()); }); };
  model_.parameters()[0].tensor().requires_grad_(false);
  EXPECT_THAT(minimize, throws_error(ErrorCode::invalid_argument,
                                     "'model/first.weight', which does not require one in replica "
                                     "0 and does in replica 1; if requires_grad_()"));
  EXPECT_THAT(
      [&] {
        two_.run([&] {
          optimizer.zero_grad();
          loss().backward();
          optimizer.step();
        });
      },
      throws_error(ErrorCode::invalid_argument, "'model/first.weight'"));
  expect_close(values_of(model_.parameters()), before);
  two_.run([&] { model_->first->weight.requires_grad_(false); });
  minimize();
  EXPECT_TRUE(values_of(model_.parameters())[0].equal(before[0])) << "frozen in both";
}

// Regression: training went on with different copies.
TEST_F(TorchOptimizers, ReplicasThatAFailedStepLeftDifferentAreRefused) {
  std::atomic<bool> is_failing = false;
  struct Unlucky : torch::optim::SGD {
    Unlucky(Tensors parameters, const std::atomic<bool>& fails)
        : SGD(std::move(parameters), torch::optim::SGDOptions(0.1)), is_failing(fails) {}
    at::Tensor step(LossClosure closure = nullptr) override {
      if (is_failing && get_replica_context()->local_replica_id() == 1)
        throw std::runtime_error("no");
      return SGD::step(std::move(closure));
    }
    const std::atomic<bool>& is_failing;
  };
  TorchOptimizer optimizer(model_, [&](Tensors parameters) {
    return std::make_unique<Unlucky>(std::move(parameters), is_failing);
  });
  const Tensors before = values_of(model_.parameters());
  const auto minimize = [&] {
    two_.run([&] { optimizer.minimize(losses_of(*model_, torch::ones({2, 5})).sum()); });
  };
  is_failing = true;
  EXPECT_THROW(minimize(), std::runtime_error);
  is_failing = false;
  for (int i = 0; i < 2; ++i) {
    EXPECT_THAT(minimize, throws_error(ErrorCode::failed_precondition,
                                       "a run that has failed updated only some of them"));
  }
  for (std::size_t i = 0; i < before.size(); ++i) model_.parameters()[i].assign(before[i]);
  EXPECT_THAT(minimize, throws_error(ErrorCode::failed_precondition, "restores the state"));
  optimizer.for_each([](Unlucky&) {});
  minimize();
  expect_equal_copies(two_, model_);
}

TEST_F(TorchOptimizers, NoReplicaMakesAStepWhoseChangeFailsInOne) {
  const TorchOptimizer optimizer(model_, sgd);
  const Tensors before = values_of(model_.parameters());
  EXPECT_THROW(two_.run([&] {
    losses_of(*model_, torch::ones({2, 5})).sum().backward();
    optimizer.step([](torch::optim::SGD&) {
      if (get_replica_context()->local_replica_id() == 1) throw std::runtime_error("no");
    });
  }),
               std::runtime_error);
  expect_close(values_of(model_.parameters()), before);
  expect_equal_copies(two_, model_);
}

// Regression: the gradients of the failed run were added to those of the next step.
TEST_F(TorchOptimizers, ANewOneDoesNotUseGradientsOfAFailedRun) {
  const auto backward = [&] { losses_of(*model_, torch::ones({2, 5})).sum().backward(); };
  EXPECT_THROW(two_.run([&] {
    backward();
    if (get_replica_context()->local_replica_id() == 1) throw std::runtime_error("no");
  }),
               std::runtime_error);
  const TorchOptimizer next(model_, sgd);
  PartlyUsed alone = model_.snapshot();
  torch::optim::SGD theirs = sgd(alone->parameters());
  (losses_of(*alone, torch::ones({2, 5})).sum() * 2).backward();
  theirs.step();
  two_.run([&] {
    backward();
    next.step();
  });
  expect_close(values_of(model_.parameters()), alone->parameters());
}

// Steps of function() have no tensors with gradients.
TEST_F(TorchOptimizers, KeepGradientsBesideAFailedStepOfFunction) {
  const TorchOptimizer optimizer(model_, sgd);
  two_.run([&] {
    optimizer.zero_grad();
    losses_of(*model_, torch::ones({2, 5})).sum().backward();
  });
  const auto failing = two_.function([](const at::Tensor& x) { return x.matmul(x); });
  EXPECT_THROW(failing(torch::ones({2, 3})), Error);
  const Tensors before = values_of(model_.parameters());
  two_.run([&] { optimizer.step(); });
  EXPECT_FALSE(values_of(model_.parameters())[0].equal(before[0]));
}

TEST_F(TorchOptimizers, ForgetGradientsOfAStepThatFails) {
  const TorchOptimizer optimizer(model_, sgd);
  EXPECT_THROW(two_.run([&] {
    losses_of(*model_, torch::ones({2, 5})).sum().backward();
    optimizer.step([](torch::optim::SGD&) { throw std::runtime_error("no"); });
  }),
               std::runtime_error);
  two_.run([&] { EXPECT_FALSE(model_->first->weight.grad().defined()); });
}

TEST_F(TorchOptimizers, RefuseOtherTensorsAndOtherGroups) {
  EXPECT_THAT([&] { TorchOptimizer(model_, [](Tensors) { return sgd({torch::ones({3})}); }); },
              throws_error(ErrorCode::invalid_argument, "another tensor, float32[3] (replica 0)"));
  EXPECT_THAT([&] { TorchOptimizer(model_, [](Tensors) { return sgd({}); }); },
              throws_error(ErrorCode::invalid_argument, "without parameters"));
  std::size_t calls = 0;
  EXPECT_THAT(
      [&] { TorchOptimizer(model_, [&](const Tensors& given) { return sgd({given[calls++]}); }); },
      throws_error(ErrorCode::invalid_argument, "the same groups of parameters in all replicas"));
  TorchOptimizer optimizer(model_, sgd);
  EXPECT_THAT(
      [&] {
        optimizer.for_each(
            [](torch::optim::SGD& each) { each.add_param_group(Tensors{torch::ones({3})}); });
      },
      throws_error(ErrorCode::invalid_argument, "got one of another tensor"));
}

TEST_F(TorchOptimizers, RefuseModulesWhoseReplicasHaveNoCopies) {
  CentralStorageStrategy central({"CPU:0", "CPU:1"});
  const auto shared = central.replicate(make_partly_used);
  EXPECT_THAT([&] { TorchOptimizer(shared, sgd); },
              throws_error(ErrorCode::unimplemented, "share one value"));
  using Shared = Replicated<PartlyUsed>::Shared;
  const Replicated<PartlyUsed> elsewhere(std::make_shared<Shared>(Shared{
      {PartlyUsed()}, make_partly_used, {}, {local_variable("w", torch::ones({2}))}, nullptr}));
  EXPECT_THAT([&] { TorchOptimizer(elsewhere, sgd); },
              throws_error(ErrorCode::unimplemented, "use cohort::Adam"));
  const auto empty = two_.replicate([] { return torch::nn::Flatten(); }, {.name = "empty"});
  EXPECT_THAT([&] { TorchOptimizer(empty, sgd); },
              throws_error(ErrorCode::invalid_argument, "with trainable parameters"));
}

TEST_F(TorchOptimizers, TrainTheOneReplicaOfCentralStorage) {
  CentralStorageStrategy one({"CPU:0"});
  const auto model = one.replicate(make_partly_used);
  const TorchOptimizer optimizer(model, sgd);
  const PartlyUsed before = model.snapshot();
  one.run([&] { optimizer.minimize(losses_of(*model, torch::ones({2, 5})).sum()); });
  EXPECT_FALSE(model.snapshot()->first->weight.equal(before->first->weight));
}

}  // namespace
}  // namespace cohort
