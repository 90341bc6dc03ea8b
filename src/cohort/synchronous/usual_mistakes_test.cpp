// SPDX-License-Identifier: Apache-2.0
// Code that newcomers write in place of the documented way has the result of one device, or throws
// an error.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <future>
#include <string>
#include <thread>

#include "cohort/optimizer/optimizers.h"
#include "cohort/strategy/synchronous_strategy.h"
#include "cohort/strategy/torch_optimizer.h"
#include "cohort/testing/throws_error.h"
#include "cohort/testing/warnings.h"

namespace cohort {
namespace {

using testing::throws_error;

struct UsualMistakes : ::testing::Test {
  MirroredStrategy two{{"CPU:0", "CPU:1"}};
  Variable w = two.variable("w", torch::tensor({1.0, -2.0}, torch::kDouble));
  Variable b = two.variable("b", torch::tensor(0.5, torch::kDouble));
  const at::Tensor x = torch::tensor({{1.0, 2.0}, {3.0, -1.0}, {0.5, 4.0}}, torch::kDouble);
  // Uneven parts.
  const PerReplica<at::Tensor> parts{{x.narrow(0, 0, 2), x.narrow(0, 2, 1)}};

  static at::Tensor loss_of(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
    return (x.matmul(weight) + bias).square().sum();
  }
  // The weight after one step of gradient descent with the learning rate 0.01 on the whole batch.
  at::Tensor weight_after_a_step() const {
    const at::Tensor weight = w.read().detach().requires_grad_();
    const at::Tensor loss = loss_of(x, weight, b.read().detach());
    return weight.detach() - 0.01 * torch::autograd::grad({loss}, {weight})[0];
  }
  void expect_weight(const at::Tensor& expected) const {
    for (const Variable& component : two.local_results(w)) {
      EXPECT_TRUE(torch::allclose(component.read().detach(), expected, 1e-12, 1e-12))
          << component.read() << expected;
    }
  }
};

// Regression: the update was that of replica 0's losses.
TEST_F(UsualMistakes, MinimizeAfterTheRunTrainsOnTheLossesOfAllReplicas) {
  const at::Tensor expected = weight_after_a_step();
  const SGD sgd({w}, {.learning_rate = 0.01});
  const auto losses =
      two.run([&](const at::Tensor& part) { return loss_of(part, w.tensor(), b.tensor()); }, parts);
  sgd.minimize(two.reduce(ReduceOp::sum, losses));
  expect_weight(expected);
}

TEST_F(UsualMistakes, SoDoesMinimizeInAMergeCall) {
  const at::Tensor expected = weight_after_a_step();
  const SGD sgd({w}, {.learning_rate = 0.01});
  two.run(
      [&](const at::Tensor& part) {
        get_replica_context()->merge_call(
            [&](Strategy& strategy, const PerReplica<at::Tensor>& losses) {
              sgd.minimize(strategy.reduce(ReduceOp::sum, losses));
            },
            loss_of(part, w.tensor(), b.tensor()));
      },
      parts);
  expect_weight(expected);
}

// Regression: only replica 0 had a gradient with respect to it.
TEST_F(UsualMistakes, AValueThatWasReadBeforeTheRunHasItsGradientInEachReplica) {
  const at::Tensor expected = weight_after_a_step();
  const SGD sgd({w, b}, {.learning_rate = 0.01});
  for (const bool is_copy : {false, true}) {
    w.assign(torch::tensor({1.0, -2.0}, torch::kDouble));
    b.assign(0.5);
    const at::Tensor weight = is_copy ? w.read() : w.tensor();
    two.run([&](const at::Tensor& part) { sgd.minimize(loss_of(part, weight, b.tensor())); },
            parts);
    expect_weight(expected);
  }
}

// Regression: the replicas had different values from then on.
TEST_F(UsualMistakes, AWriteInPlaceOutsideOfARunCountsForAllReplicas) {
  const auto values = [&] { return two.run([&] { return w.tensor().detach().clone(); }); };
  const torch::NoGradGuard no_grad;
  for (int round = 0; round < 3; ++round) {
    w.tensor().fill_(round);
    for (const at::Tensor& value : two.local_results(values()))
      EXPECT_TRUE(torch::equal(value, torch::full({2}, round, torch::kDouble))) << round;
    w.assign_add(torch::ones({2}, torch::kDouble));
    w.tensor().mul_(2);
    for (const at::Tensor& value : two.local_results(values()))
      EXPECT_TRUE(torch::equal(value, torch::full({2}, 2 * (round + 1), torch::kDouble))) << round;
  }
}

TEST_F(UsualMistakes, AComponentThatWasAssignedAloneKeepsItsValue) {
  (void)w.tensor();
  two.local_results(w)[1].assign(torch::zeros({2}, torch::kDouble));
  two.local_results(w)[0].assign(torch::ones({2}, torch::kDouble));
  two.run([&] {
    EXPECT_EQ(w.tensor()[0].item<double>(), get_replica_context()->local_replica_id() == 0 ? 1 : 0);
  });
}

TEST_F(UsualMistakes, AWriteIntoTheTensorOfOneReplicaIsNoticed) {
  EXPECT_THAT(
      [&] {
        two.run([&] {
          const torch::NoGradGuard no_grad;
          if (get_replica_context()->local_replica_id() == 1) w.tensor().add_(1);
        });
      },
      throws_error(ErrorCode::failed_precondition, "equal values of variable 'w' in all replicas"));
}

// Regression: what one run had half done looked like a difference at the end of another.
TEST_F(UsualMistakes, ARunLeavesAloneWhatAnotherHasHalfDone) {
  std::promise<void> half_done, others_done;
  std::thread other([&] {
    two.run([&] {
      const torch::NoGradGuard no_grad;
      const bool is_first = get_replica_context()->local_replica_id() == 0;
      if (!is_first) others_done.get_future().wait();
      w.tensor().add_(1);
      if (is_first) half_done.set_value();
    });
  });
  half_done.get_future().wait();
  for (int run = 0; run < 4; ++run) EXPECT_NO_THROW(two.run([&] { (void)b.tensor(); }));
  (void)w.tensor();
  EXPECT_NO_THROW(two.run([&] { (void)b.tensor(); }));
  others_done.set_value();
  other.join();
  expect_weight(torch::tensor({2.0, -1.0}, torch::kDouble));
}

// Regression: such a tensor has no count of writes, and the end of the run threw.
TEST_F(UsualMistakes, AVariableMayBeMadeInInferenceMode) {
  const Variable made = [&] {
    const c10::InferenceMode guard;
    return two.variable("made", torch::ones({2}), {.is_trainable = false});
  }();
  two.run([&] { EXPECT_EQ(made.tensor().sum().item<double>(), 2); });
  EXPECT_EQ(made.tensor().sum().item<double>(), 2);
  two.run([&] { EXPECT_EQ(made.tensor().sum().item<double>(), 2); });
  {
    const c10::InferenceMode guard;
    made.tensor().fill_(5);
  }
  for (int run = 0; run < 3; ++run)
    two.run([&] { EXPECT_EQ(made.tensor().sum().item<double>(), 10); });
  made.assign(torch::zeros({2}));
  two.run([&] { EXPECT_EQ(made.tensor().sum().item<double>(), 0); });
}

// Regression: a replica whose own parameters were trainable asked for the gradient of the other's.
TEST_F(UsualMistakes, ParametersAreFrozenForAWhileInEachReplica) {
  const SGD sgd({w}, {.learning_rate = 0.01}), other({b}, {.learning_rate = 0.01});
  const at::Tensor first = b.read().detach();
  for (int step = 0; step < 20; ++step) {
    const at::Tensor expected = weight_after_a_step();
    two.run(
        [&](const at::Tensor& part) {
          b.tensor().requires_grad_(false);
          sgd.minimize(loss_of(part, w.tensor(), b.tensor()));
          b.tensor().requires_grad_(true);
          other.minimize(loss_of(part, w.tensor().detach(), b.tensor()));
        },
        parts);
    expect_weight(expected);
  }
  EXPECT_FALSE(torch::equal(b.read(), first));
}

// Regression: the remedy, mean(), gives gradients that are too large.
TEST_F(UsualMistakes, ALossOfSeveralNumbersIsToBeAveraged) {
  const SGD sgd({w}, {.learning_rate = 0.01});
  EXPECT_THAT(
      [&] {
        two.run([&](const at::Tensor& part) { sgd.minimize(part.matmul(w.tensor())); }, parts);
      },
      throws_error(ErrorCode::invalid_argument, "reduce it with average_loss()"));
}

// Regression: it began with new slots in each run, and the old ones stayed.
TEST_F(UsualMistakes, AnOptimizerIsMadeOutsideOfRun) {
  EXPECT_THAT([&] { two.run([&] { const SGD sgd({w}, {.learning_rate = 0.01}); }); },
              throws_error(ErrorCode::failed_precondition, "make it once outside"));
}

// Regression: the exception of LibTorch passed with a page of stack frames.
TEST_F(UsualMistakes, AnErrorOfLibTorchIsAnErrorAlsoWithOneReplica) {
  OneDeviceStrategy one;
  EXPECT_THAT([&] { one.run([] {
                      torch::ones({2, 3}).matmul(torch::ones({2, 3}));
                    }); },
              throws_error(ErrorCode::invalid_argument, "'mm' failed: mat1"));
}

// Regression: it was a reference into freed memory.
TEST_F(UsualMistakes, AComponentOfATemporaryIsAValue) {
  static_assert(std::is_same_v<decltype(two.run([] { return at::Tensor(); })[0]), at::Tensor>);
  static_assert(
      std::is_same_v<decltype(std::declval<PerReplica<at::Tensor>>().value()), at::Tensor>);
  const at::Tensor& first = two.run([&] { return w.read(); })[0];
  EXPECT_EQ(first.sum().item<double>(), -1);
}

TEST_F(UsualMistakes, SoIsAnOptimizerOfLibTorchOnItsOwnGradients) {
  const auto model = two.replicate([] { return torch::nn::Linear(2, 1); });
  EXPECT_THAT(
      [&] {
        two.run(
            [&](const at::Tensor& part) {
              torch::optim::SGD sgd(model->parameters(), 0.1);
              model->forward(part.to(torch::kFloat)).square().sum().backward();
              sgd.step();
            },
            parts);
      },
      throws_error(ErrorCode::failed_precondition, "an optimizer of LibTorch"));
}

TEST_F(UsualMistakes, EqualWritesInAllReplicasAreAllowed) {
  two.run([&] {
    const torch::NoGradGuard no_grad;
    w.tensor().clamp_(-1, 1);
  });
  expect_weight(torch::tensor({1.0, -1.0}, torch::kDouble));
}

// They are equal, although NaN is not equal to itself.
TEST_F(UsualMistakes, ATrainingThatDivergedToNanGoesOn) {
  const SGD sgd({w}, {.learning_rate = 0.01});
  for (int step = 0; step < 4; ++step)
    two.run([&] { sgd.minimize(w.tensor().sum() * std::nan("")); });
  EXPECT_TRUE(torch::isnan(w.read()).all().item<bool>());
}

// Regression: each replica clipped its own gradient, and the sum had twice the norm.
TEST_F(UsualMistakes, ClippingInAReplicaIsThatOfTheSum) {
  const at::Tensor weight = w.read().detach().requires_grad_();
  const at::Tensor gradient =
      torch::autograd::grad({loss_of(x, weight, b.read().detach())}, {weight})[0];
  const at::Tensor expected = w.read().detach() - 0.1 * gradient / gradient.norm();
  const SGD sgd({w}, {.learning_rate = 0.1});
  two.run(
      [&](const at::Tensor& part) {
        const auto gradients =
            sgd.compute_gradients(loss_of(part, w.tensor(), b.tensor().detach()));
        sgd.apply_gradients(clip_by_global_norm(gradients, 1.0).gradients);
      },
      parts);
  expect_weight(expected);
}

TEST_F(UsualMistakes, AColumnOfWeightsIsTakenAsOneForEachExample) {
  const auto average = [](const at::Tensor& losses, const at::Tensor& weights) {
    return average_loss(losses, {.weights = weights}).item<double>();
  };
  const at::Tensor losses = torch::tensor({1.0, 2.0, 3.0}, torch::kDouble),
                   weights = torch::tensor({2.0, 0.0, 1.0}, torch::kDouble);
  const double expected = 5.0 / 3;
  EXPECT_DOUBLE_EQ(average(losses, weights), expected);
  EXPECT_DOUBLE_EQ(average(losses, weights.unsqueeze(1)), expected);
  EXPECT_DOUBLE_EQ(average(losses.unsqueeze(1), weights), expected);
  EXPECT_DOUBLE_EQ(average(losses.unsqueeze(1), weights.unsqueeze(1)), expected);
  for (const std::vector<std::int64_t>& shape :
       std::vector<std::vector<std::int64_t>>{{2}, {3, 3}, {1, 3}, {1, 3, 1}}) {
    EXPECT_THAT([&] { average(losses, torch::ones(shape)); },
                throws_error(ErrorCode::invalid_argument, "give a weight for each example"));
  }
}

TEST_F(UsualMistakes, AValueOfEachReplicaIsNoPlainValue) {
  const PerReplica<at::Tensor> losses =
      two.run([](const at::Tensor& part) { return part.sum(); }, parts);
  const SGD sgd({w}, {.learning_rate = 0.01});
  const auto refused = throws_error(ErrorCode::failed_precondition,
                                    "got one of 2; take local_results(), or reduce() it");
  EXPECT_THAT([&] { b.assign(losses); }, refused);
  EXPECT_THAT([&] { sgd.minimize(losses); }, refused);
  EXPECT_THAT([&] { two.run([&] { average_loss(losses); }); }, refused);
}

// Regression: the components that no replica had were lost.
TEST_F(UsualMistakes, ADistributedValueHasOneComponentForEachReplica) {
  const auto traced = two.function([](at::Tensor part) { return part * 1; });
  for (const std::size_t count : {1, 3}) {
    const PerReplica<at::Tensor> values(std::vector<at::Tensor>(count, x));
    const auto refused = [&](const auto& call) {
      EXPECT_THAT(call, throws_error(ErrorCode::invalid_argument,
                                     "with a component for each replica of this process, of which "
                                     "there are 2, got one with " +
                                         std::to_string(count)));
    };
    bool has_run = false;
    refused([&] { two.run([&](const at::Tensor&) { has_run = true; }, values); });
    refused([&] { two.run([&](const at::Tensor&, int) { has_run = true; }, values, 1); });
    EXPECT_FALSE(has_run);
    refused([&] { traced(values); });
    refused([&] {
      two.extended().update(
          w, [](const Variable& component, const at::Tensor& own) { component.assign_add(own[0]); },
          values);
    });
    refused([&] {
      two.run([&] { return get_replica_context()->merge_call([&](Strategy&) { return values; }); });
    });
  }
}

TEST_F(UsualMistakes, AGradientThatOneReplicaDoesNotWantIsExplained) {
  w.tensor().requires_grad_(false);  // of replica 0 alone
  const SGD sgd({w, b}, {.learning_rate = 0.01});
  const auto step = [&](const at::Tensor& part) {
    sgd.minimize(loss_of(part, w.tensor(), b.tensor()));
  };
  EXPECT_THAT([&] { two.run(step, parts); },
              throws_error(ErrorCode::invalid_argument, "call it inside of run()"));
  two.run([&] { w.tensor().requires_grad_(false); });
  const at::Tensor before = w.read().detach().clone();
  two.run(step, parts);
  expect_weight(before);
}

TEST_F(UsualMistakes, ASparseGradientIsClippedAsADenseOne) {
  const auto clipped = [&](bool is_sparse, const std::string& name) {
    const Variable table = two.variable(name, torch::ones({5, 2}, torch::kDouble));
    const SGD sgd({table, b}, {.learning_rate = 1});
    two.run(
        [&](const at::Tensor& rows) {
          const at::Tensor used =
              at::embedding(table.tensor(), rows, -1, /*scale_grad_by_freq=*/false, is_sparse);
          sgd.apply_gradients(
              clip_by_global_norm(sgd.compute_gradients(used.square().sum() + 3 * b.tensor()), 0.5)
                  .gradients);
        },
        PerReplica<at::Tensor>({torch::tensor({1, 3, 1}), torch::tensor({3})}));
    return table.read().detach();
  };
  EXPECT_TRUE(torch::allclose(clipped(true, "sparse"), clipped(false, "dense"), 1e-12, 1e-12));
}

TEST_F(UsualMistakes, AStepOfAFunctionNeedsDenseTensors) {
  const auto step = two.function([](at::Tensor part) { return part + 1; });
  EXPECT_THAT([&] { step(at::Tensor()); },
              throws_error(ErrorCode::invalid_argument, "an undefined one as argument 0"));
  EXPECT_THAT([&] { step(x.to_sparse()); },
              throws_error(ErrorCode::invalid_argument, "a sparse one as argument 0"));
}

TEST_F(UsualMistakes, ALearningRateIsNotSetInAReplica) {
  SGD sgd({w}, {.learning_rate = 0.1});
  EXPECT_THAT([&] { two.run([&] { sgd.set_learning_rate(0.2); }); },
              throws_error(ErrorCode::failed_precondition, "set it between two runs"));
  EXPECT_EQ(sgd.learning_rate(), 0.1);
}

// Regression: the batches of another strategy were taken, with the counts of its workers.
TEST_F(UsualMistakes, AnElementOfAnotherStrategyIsRefused) {
  MirroredStrategy other({"CPU:0", "CPU:1"});
  const Dataset dataset = Dataset::range(4).batch(4);
  const auto of_other = other.distribute_dataset(dataset), own = two.distribute_dataset(dataset);
  const auto rows = [](const at::Tensor& part) { return part + 1; };
  const auto step = two.function(rows);
  EXPECT_THAT([&] { two.run(rows, of_other.iterator().get_next()); },
              throws_error(ErrorCode::invalid_argument,
                           "[strategy.run] expected an element of a dataset that this 'mirrored' "
                           "has distributed as argument 0, got one of another strategy"));
  EXPECT_THAT([&] { step(of_other.iterator().get_next()); },
              throws_error(ErrorCode::invalid_argument, "[strategy.function] expected an element"));
  EXPECT_EQ(two.run(rows, own.iterator().get_next()).size(), 2);
  EXPECT_EQ(step(own.iterator().get_next()).size(), 2);
  const auto plain = default_strategy().distribute_dataset(dataset);
  EXPECT_EQ(two.run(rows, plain.iterator().get_next())[0].size(0), 4);
}

struct UsualLosses : UsualMistakes {
  using Loss = std::function<at::Tensor(const at::Tensor& part)>;
  // How often five steps with this loss warn with this text.
  template <class Argument>
  static int lines_of(const std::string& text, Strategy& strategy, const Optimizer& optimizer,
                      const Loss& loss, const Argument& rows) {
    testing::Warnings warnings;
    for (int i = 0; i < 5; ++i)
      strategy.run([&](const at::Tensor& part) { optimizer.minimize(loss(part)); }, rows);
    return warnings.count(text);
  }
  int lines_of_mean(const Loss& loss) {
    return lines_of("is a mean over the rows", two, SGD({w, b}, {.learning_rate = 0.001}), loss,
                    parts);
  }
  at::Tensor predicted(const at::Tensor& part) const {
    return part.matmul(w.tensor()) + b.tensor();
  }
};

// Regression: the step was as many times too large as there are replicas, without a word.
TEST_F(UsualLosses, AMeanOfAReplicasRowsIsWarnedOfOnce) {
  const auto target = [](const at::Tensor& part) { return part.select(1, 0); };
  const auto mse = [&](auto reduction) {
    return [&, reduction](const at::Tensor& part) {
      return torch::nn::functional::mse_loss(
          predicted(part), target(part),
          torch::nn::functional::MSELossFuncOptions().reduction(reduction));
    };
  };
  EXPECT_EQ(lines_of_mean([&](const at::Tensor& part) { return predicted(part).mean(); }), 1);
  EXPECT_EQ(lines_of_mean(mse(torch::kMean)), 1);
  EXPECT_EQ(lines_of_mean([&](const at::Tensor& part) {
              return average_loss(predicted(part)) + 0.1 * w.tensor().sum() + w.tensor().mean();
            }),
            1)
      << "in a sum";
  EXPECT_EQ(lines_of_mean(mse(torch::kSum)), 0);
  EXPECT_EQ(lines_of_mean([&](const at::Tensor& part) { return predicted(part).mean() / 2; }), 0);
  EXPECT_EQ(lines_of_mean([&](const at::Tensor& part) { return average_loss(predicted(part)); }),
            0);
}

TEST_F(UsualLosses, AMeanIsRightWithOneReplica) {
  OneDeviceStrategy one;
  const Variable v = one.variable("v", torch::ones({2}, torch::kDouble));
  const auto loss = [&](const at::Tensor& part) { return part.matmul(v.tensor()).mean(); };
  EXPECT_EQ(lines_of("is a mean", one, SGD({v}), loss, x), 0);
}

// Regression: the line of the header printed LibTorch's deprecation in each replica and step.
TEST_F(UsualLosses, ClippingInATorchOptimizerPrintsNothing) {
  const auto net = two.replicate([] { return torch::nn::Linear(2, 1); }, {.name = "net"});
  const TorchOptimizer optimizer(net, [](std::vector<at::Tensor> parameters) {
    return torch::optim::SGD(std::move(parameters), torch::optim::SGDOptions(0.1));
  });
  ::testing::internal::CaptureStderr();
  two.run(
      [&](const at::Tensor& part) {
        average_loss(net->forward(part.to(torch::kFloat))).backward();
        optimizer.step([](torch::optim::SGD& own) {
          torch::nn::utils::clip_grad_norm_(own.param_groups()[0].params(), 1.0);
        });
      },
      parts);
  const std::string printed = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(printed.find("Optimizer::parameters()"), std::string::npos) << printed;
}

TEST_F(UsualLosses, AMeanIsWarnedOfInAFunctionAndWithTorchOptimizer) {
  const std::string text = "is a mean over the rows";
  testing::Warnings warnings;
  const SGD sgd({w, b});
  two.function([&](const at::Tensor& part) { sgd.minimize(predicted(part).mean()); })(parts);
  EXPECT_EQ(warnings.count(text), 1);
  const auto net = two.replicate(
      [] {
        torch::nn::Linear made(2, 1);
        made->to(torch::kDouble);
        return made;
      },
      {.name = "net"});
  const TorchOptimizer optimizer(net, [](std::vector<at::Tensor> parameters) {
    return torch::optim::SGD(std::move(parameters), torch::optim::SGDOptions(0.1));
  });
  two.run([&](const at::Tensor& part) { optimizer.minimize(net->forward(part).mean()); }, parts);
  EXPECT_EQ(warnings.count(text), 2);
}

// Regression: the gradient was as many times too large as there are replicas, without a word.
TEST_F(UsualLosses, AStepWithoutAverageLossIsWarnedOfOnce) {
  const auto lines = [&](const std::string& name, const auto& body) {
    const auto net = two.replicate([] { return torch::nn::Linear(2, 1); }, {.name = name});
    const TorchOptimizer optimizer(net, [](std::vector<at::Tensor> parameters) {
      return torch::optim::SGD(std::move(parameters), torch::optim::SGDOptions(0.1));
    });
    testing::Warnings warnings;
    for (int step = 0; step < 3; ++step) {
      two.run(
          [&](const at::Tensor& part) { body(net->forward(part.to(torch::kFloat)), optimizer); },
          parts);
    }
    return warnings.count("average_loss() was not called");
  };
  using Sgd = TorchOptimizer<torch::optim::SGD>;
  EXPECT_EQ(lines("mean",
                  [](const at::Tensor& losses, const Sgd& optimizer) {
                    optimizer.zero_grad();
                    losses.mean().backward();
                    optimizer.step();
                  }),
            1);
  EXPECT_EQ(lines("average",
                  [](const at::Tensor& losses, const Sgd& optimizer) {
                    average_loss(losses).backward();
                    optimizer.step();
                  }),
            0);
  EXPECT_EQ(lines("minimize", [](const at::Tensor& losses,
                                 const Sgd& optimizer) { optimizer.minimize(losses.sum() / 3); }),
            0);
}

// The second run has only the step.
TEST_F(UsualLosses, GradientsOfAnEarlierRunMayBeScaled) {
  const auto net = two.replicate([] { return torch::nn::Linear(2, 1); }, {.name = "net"});
  const TorchOptimizer optimizer(net, [](std::vector<at::Tensor> parameters) {
    return torch::optim::SGD(std::move(parameters), torch::optim::SGDOptions(0.1));
  });
  testing::Warnings warnings;
  two.run(
      [&](const at::Tensor& part) {
        optimizer.zero_grad();
        average_loss(net->forward(part.to(torch::kFloat))).backward();
      },
      parts);
  two.run([&] { optimizer.step(); });
  EXPECT_EQ(warnings.text(), "");
}

// Regression: it gave the numbers of a mean of the replica's rows, without a word.
TEST_F(UsualLosses, TheNumberOfOneReplicasRowsIsWarnedOfOnce) {
  const std::string text = "which is the number of one replica's rows";
  const auto loss = [&](bool is_right) {
    return [&, is_right](const at::Tensor& part) {
      return average_loss(predicted(part), {.global_batch_size = is_right ? 3 : part.size(0)});
    };
  };
  const SGD sgd({w, b}, {.learning_rate = 0.001});
  EXPECT_EQ(lines_of(text, two, sgd, loss(true), parts), 0);
  EXPECT_EQ(lines_of(text, two, sgd, loss(false), parts), 1);
  EXPECT_EQ(lines_of(text, two, sgd, loss(false), parts), 0);
  MirroredStrategy traced({"CPU:0", "CPU:1"});
  testing::Warnings warnings;
  traced.function([](const at::Tensor& part) {
    return average_loss(part.sum(1), {.global_batch_size = part.size(0)});
  })(parts);
  EXPECT_EQ(warnings.count(text), 1);
  OneDeviceStrategy one;
  one.run([&] { average_loss(x.sum(1), {.global_batch_size = 3}); });
  EXPECT_EQ(warnings.count(text), 1);
}

}  // namespace
}  // namespace cohort
