// SPDX-License-Identifier: Apache-2.0
// Which gradients count in a step of a TorchOptimizer: those that count in LibTorch's own step
// after zero_grad() and the same backward().
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "cohort/strategy/synchronous_strategy.h"
#include "cohort/strategy/torch_optimizer.h"
#include "cohort/synchronous/whole_batch_fixture.h"
#include "cohort/testing/throws_error.h"

namespace cohort {
namespace {

using ::testing::HasSubstr;
using testing::Tensors;
using testing::throws_error;

// Two scalars that both losses use, as the generator's loss uses the discriminator.
struct PairOfScalarsImpl : torch::nn::Module {
  at::Tensor a = register_parameter("a", torch::full({1}, 1.0));
  at::Tensor b = register_parameter("b", torch::full({1}, 1.0));
};
TORCH_MODULE(PairOfScalars);

torch::optim::SGD sgd_of(Tensors parameters) {
  return torch::optim::SGD(std::move(parameters), torch::optim::SGDOptions(0.1));
}

class GradientsOfSteps : public ::testing::TestWithParam<int> {
 protected:
  static TorchOptimizer<torch::optim::SGD> optimizer_of(const Replicated<PairOfScalars>& model,
                                                        std::vector<std::size_t> which) {
    return {model, [which](const Tensors& all) {
              Tensors own;
              for (const std::size_t i : which) own.push_back(all.at(i));
              return sgd_of(std::move(own));
            }};
  }
  // The share of one replica of a loss.
  at::Tensor share(const at::Tensor& loss) const { return loss.sum() / GetParam(); }
  double value(std::size_t i) const { return model_.parameters()[i].read().item<double>(); }

  MirroredStrategy strategy_{testing::devices_for(testing::Sizes(GetParam()))};
  const Replicated<PairOfScalars> model_ = strategy_.replicate([] { return PairOfScalars(); });
};

// Regression: two optimizers of a GAN gave 0.9 for 0.8.
TEST_P(GradientsOfSteps, LeaveOutThoseThatTheLossOfAnotherOptimizerHasLeft) {
  const auto first = optimizer_of(model_, {0}), second = optimizer_of(model_, {1});
  for (int step = 0; step < 3; ++step) {
    strategy_.run([&] {
      share(model_->a * 1.0).backward();
      first.step();
      share(model_->b - model_->a * 2.0).backward();  // reaches a, which it must not train
      second.step();
    });
    EXPECT_NEAR(value(0), 1 - 0.1 * (step + 1), 1e-6) << step;
    EXPECT_NEAR(value(1), 1 - 0.1 * (step + 1), 1e-6) << step;
  }
}

TEST_P(GradientsOfSteps, LeaveThemOutInOneRunOfSeveralSteps) {
  const auto first = optimizer_of(model_, {0}), second = optimizer_of(model_, {1});
  strategy_.run([&] {
    for (int step = 0; step < 3; ++step) {
      share(model_->a + model_->b * 5.0).backward();
      first.step();
      share(model_->b - model_->a * 2.0).backward();
      second.step();
    }
  });
  EXPECT_NEAR(value(0), 0.7, 1e-6);
  EXPECT_NEAR(value(1), 0.7, 1e-6);
}

// A parameter that the later backward pass does not reach has no gradient after zero_grad().
TEST_P(GradientsOfSteps, LeaveOutWhatTheLaterPassDoesNotReach) {
  const auto both = optimizer_of(model_, {0, 1});
  const auto other = strategy_.replicate([] { return PairOfScalars(); }, {.name = "other"});
  const auto of_other = optimizer_of(other, {0});
  strategy_.run([&] {
    share(model_->a + other->a).backward();
    of_other.step();
    share(model_->b * 1.0).backward();
    both.step();
  });
  EXPECT_NEAR(value(0), 1.0, 1e-6);
  EXPECT_NEAR(value(1), 0.9, 1e-6);
}

TEST_P(GradientsOfSteps, OfOneLossServeSeveralOptimizers) {
  const auto first = optimizer_of(model_, {0}), second = optimizer_of(model_, {1});
  strategy_.run([&] {
    share(model_->a + model_->b * 2.0).backward();
    first.step();
    second.step();
  });
  EXPECT_NEAR(value(0), 0.9, 1e-6);
  EXPECT_NEAR(value(1), 0.8, 1e-6);
}

// Regression: a group that was added later gave 0.4 for 0.9.
TEST_P(GradientsOfSteps, LeaveOutThoseOfAGroupFromBeforeItWasAdded) {
  auto optimizer = optimizer_of(model_, {0});
  std::vector<Tensors> second(static_cast<std::size_t>(GetParam()));
  for (int step = 0; step < 5; ++step) {
    strategy_.run([&] {
      share(model_->a + model_->b).backward();
      optimizer.step();
      second[static_cast<std::size_t>(get_replica_context()->local_replica_id())] = {model_->b};
    });
  }
  std::size_t replica = 0;
  optimizer.for_each([&](torch::optim::SGD& each) {
    each.add_param_group(torch::optim::OptimizerParamGroup(second[replica++]));
  });
  strategy_.run([&] {
    share(model_->a + model_->b).backward();
    optimizer.step();
  });
  EXPECT_NEAR(value(0), 0.4, 1e-6);
  EXPECT_NEAR(value(1), 0.9, 1e-6);
}

TEST_P(GradientsOfSteps, OfAnEarlierRunDoNotCountUnlessTheyAccumulate) {
  const auto optimizer = optimizer_of(model_, {0, 1});
  const auto backward = [&] { share(model_->a * 1.0).backward(); };
  ::testing::internal::CaptureStderr();
  strategy_.run(backward);
  strategy_.run([&] {
    backward();
    optimizer.step();
  });
  const std::string log = ::testing::internal::GetCapturedStderr();
  if (GetParam() == 1) {  // once in a process
    EXPECT_THAT(log, ::testing::HasSubstr("call zero_grad() in the first of them"));
  }
  EXPECT_NEAR(value(0), 0.9, 1e-6);
  strategy_.run([&] {
    optimizer.zero_grad();
    backward();
  });
  strategy_.run(backward);
  strategy_.run([&] {
    backward();
    optimizer.step();
  });
  EXPECT_NEAR(value(0), 0.6, 1e-6);
  strategy_.run([&] {
    backward();
    optimizer.step();
  });
  EXPECT_NEAR(value(0), 0.5, 1e-6) << "a step ends the accumulation";
}

TEST_P(GradientsOfSteps, AccumulateOverStepsOfOthers) {
  const auto first = optimizer_of(model_, {0}), second = optimizer_of(model_, {1});
  strategy_.run([&] { first.zero_grad(); });
  for (int step = 0; step < 2; ++step) {
    strategy_.run([&] {
      share(model_->a + model_->b).backward();
      second.step();
    });
  }
  strategy_.run([&] { first.step(); });
  EXPECT_NEAR(value(0), 0.8, 1e-6);
  EXPECT_NEAR(value(1), 0.8, 1e-6);
}

TEST_P(GradientsOfSteps, ThatAccumulateAreRefusedAfterAFailedRunUntilZeroGrad) {
  const auto optimizer = optimizer_of(model_, {0});
  const auto backward = [&](bool fails) {
    share(model_->a * 1.0).backward();
    if (fails) throw std::runtime_error("no");
  };
  strategy_.run([&] {
    optimizer.zero_grad();
    backward(false);
  });
  EXPECT_THROW(strategy_.run([&] { backward(true); }), std::runtime_error);
  EXPECT_THAT([&] { strategy_.run([&] { optimizer.step(); }); },
              throws_error(ErrorCode::failed_precondition, "call zero_grad() in all replicas"));
  EXPECT_NEAR(value(0), 1.0, 1e-6);
  strategy_.run([&] {
    optimizer.zero_grad();
    backward(false);
    optimizer.step();
  });
  EXPECT_NEAR(value(0), 0.9, 1e-6);
}

TEST_P(GradientsOfSteps, OfMinimizeAreThoseOfItsLossAndCanBeChanged) {
  const auto optimizer = optimizer_of(model_, {0});
  strategy_.run([&] {
    share(model_->a * 7.0).backward();
    optimizer.minimize(share(model_->a * 3.0), [](torch::optim::SGD& own) {
      for (auto& group : own.param_groups())
        for (at::Tensor& each : group.params()) each.mutable_grad().clamp_(-1, 1);
    });
  });
  EXPECT_NEAR(value(0), 0.9, 1e-6);
}

INSTANTIATE_TEST_SUITE_P(Replicas, GradientsOfSteps, ::testing::Values(1, 2));

// Regression: the message told of an optimizer of LibTorch that is none of cohort's.
TEST(OptimizersOfReplicas, ThatDifferAreNamedWhereTheirParametersDiffer) {
  using torch::optim::SGD;
  const auto error_after = [](const std::function<void(SGD&, bool is_first)>& change) {
    MirroredStrategy two({"CPU:0", "CPU:1"});
    const auto net = two.replicate([] { return torch::nn::Linear(2, 1); }, {.name = "net"});
    TorchOptimizer optimizer(net, [](std::vector<at::Tensor> parameters) {
      return SGD(std::move(parameters), torch::optim::SGDOptions(0.25).momentum(0.5));
    });
    const auto step = [&] { optimizer.minimize(average_loss(net->forward(at::ones({4, 2})))); };
    try {
      two.run(step);
      bool is_first = true;
      optimizer.for_each([&](SGD& each) { change(each, std::exchange(is_first, false)); });
      for (int i = 0; i < 4; ++i) two.run(step);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::failed_precondition);
      return std::string(error.what());
    }
    return std::string();
  };
  const std::string start = "the TorchOptimizer of 'net/weight' differs between the replicas, ";
  const std::string of_rates = error_after([](SGD& each, bool is_first) {
    auto& options = static_cast<torch::optim::SGDOptions&>(each.param_groups()[0].options());
    options.lr(is_first ? 0.125 : 0.25);
  });
  EXPECT_THAT(of_rates, HasSubstr(start + "lr 0.125 in replica 0, 0.25 in replica 1; "));
  EXPECT_THAT(of_rates, HasSubstr("load states in for_each(), in the same way for each"));
  EXPECT_THAT(error_after([](SGD& each, bool is_first) {
                if (is_first) each.state().clear();
              }),
              HasSubstr(start + "whose state is another one in replica 1 than in replica 0"));
  EXPECT_EQ(error_after([](SGD& each, bool) { each.state().clear(); }), "");
}

}  // namespace
}  // namespace cohort
