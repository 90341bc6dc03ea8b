// SPDX-License-Identifier: Apache-2.0
// Workers whose values become different without the strategy: all find out, and no file has those
// of one worker.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <string>
#include <vector>

#include "cohort/optimizer/optimizers.h"
#include "cohort/strategy/torch_optimizer.h"
#include "cohort/synchronous/workers/workers_fixture.h"
#include "cohort/testing/temporary_folder.h"
#include "cohort/testing/warnings.h"
#include "cohort/variable/saved_values.h"

namespace cohort {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::run_workers;
using testing::text_of;

using torch::nn::Linear;

Error error_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (...) {
    return current_error();
  }
}

auto linear() {
  return [] { return torch::nn::Linear(2, 1); };
}

// Regression: each worker trained by itself, without a word.
TEST(MultiWorkerDrift, OfAnOptimizerOfLibTorchIsFoundAtTheEndOfARun) {
  for (const bool is_adam : {false, true}) {
    const auto errors = run_workers(2, {}, [&](auto& strategy) {
      const auto net = strategy.replicate(linear());
      std::unique_ptr<torch::optim::Optimizer> optimizer;
      const at::Tensor x = at::full({4, 2}, 1.0 + strategy.worker());
      strategy.run([&] {
        if (is_adam) {
          optimizer = std::make_unique<torch::optim::Adam>(net->parameters(), 0.1);
        } else {
          optimizer = std::make_unique<torch::optim::SGD>(net->parameters(), 0.1);
        }
        net->forward(x).square().mean().backward();
        optimizer->step();
      });
    });
    for (const auto& error : errors) {
      EXPECT_THAT(text_of(error),
                  AllOf(HasSubstr("[strategy.run] expected equal values of variable '"),
                        HasSubstr("on all workers"), HasSubstr("an optimizer of LibTorch"),
                        HasSubstr("or the options or the state of the TorchOptimizers differ "
                                  "between the workers, as after a load on one of them; use "
                                  "minimize()")));
    }
  }
}

// Regression: the message told of an optimizer of LibTorch that is none of cohort's.
TEST(MultiWorkerDrift, OfOptionsOfATorchOptimizerNamesThem) {
  for (const int when : {0, 2}) {  // the step from which on they differ
    const auto errors = run_workers(2, {}, [&](auto& strategy) {
      const auto net = strategy.replicate(linear());
      TorchOptimizer optimizer(net, [&](std::vector<at::Tensor> parameters) {
        return torch::optim::Adam(std::move(parameters), torch::optim::AdamOptions(0.5));
      });
      for (int step = 0; step <= when; ++step) {
        if (step == when && strategy.worker() == 1) {
          optimizer.for_each([](torch::optim::Adam& each) {
            for (auto& group : each.param_groups())
              static_cast<torch::optim::AdamOptions&>(group.options()).lr(0.25);
          });
        }
        strategy.run([&] { optimizer.minimize(net->forward(at::ones({4, 2})).sum() / 8); });
      }
    });
    for (const auto& error : errors) {
      EXPECT_THAT(text_of(error),
                  AllOf(HasSubstr("[strategy.TorchOptimizer] expected one call on all workers, got "
                                  "optimizer 'Adam': lr 0.5, beta_1 0.9, beta_2 0.999, eps 1e-08, "
                                  "weight_decay 0, amsgrad 0 on worker:0"),
                        HasSubstr("lr 0.25, beta_1 0.9"), HasSubstr("on worker:1")))
          << when;
    }
  }
}

// Regression: the gradient of the worker that trained the parameter was applied on both.
TEST(MultiWorkerDrift, OfAParameterThatOneWorkerHasFrozenNamesIt) {
  for (const int when : {0, 2}) {  // the step from which on it is frozen
    const auto errors = run_workers(2, {}, [&](auto& strategy) {
      const auto net = strategy.replicate(linear(), {.name = "net"});
      const TorchOptimizer optimizer(net, [](std::vector<at::Tensor> parameters) {
        return torch::optim::SGD(std::move(parameters), torch::optim::SGDOptions(0.5));
      });
      for (int step = 0; step <= when; ++step) {
        strategy.run([&] {
          net->weight.requires_grad_(step < when || strategy.worker() == 1);
          optimizer.minimize(net->forward(at::ones({4, 2})).sum() / 8);
        });
      }
    });
    for (const auto& error : errors) {
      EXPECT_THAT(text_of(error),
                  AllOf(HasSubstr("a step in which all but 'net/weight' require a gradient on "
                                  "worker:0 and a step in which all parameters require a gradient "
                                  "on worker:1"),
                        HasSubstr("[strategy.TorchOptimizer] expected one call on all workers")))
          << when;
    }
  }
}

// One that a worker's loss does not use has a gradient of zero there.
TEST(MultiWorkerDrift, IsNoneWhereOneWorkerHasNoGradient) {
  const auto errors = run_workers(2, {}, [&](auto& strategy) {
    const auto net = strategy.replicate(linear(), {.name = "net"});
    const TorchOptimizer optimizer(net, [](std::vector<at::Tensor> parameters) {
      return torch::optim::SGD(std::move(parameters), torch::optim::SGDOptions(0.5));
    });
    for (int step = 0; step < 4; ++step) {
      strategy.run([&] {
        const at::Tensor used = strategy.worker() == 0 ? net->bias : net->weight;
        optimizer.minimize(used.sum() / 2);
      });
    }
    net.snapshot();
  });
  for (const auto& error : errors) EXPECT_EQ(text_of(error), "");
}

TEST(MultiWorkerDrift, OfOptionsOfAGroupNamesTheGroup) {
  const auto errors = run_workers(2, {}, [&](auto& strategy) {
    const auto net = strategy.replicate(linear());
    const TorchOptimizer optimizer(net, [&](std::vector<at::Tensor> parameters) {
      torch::optim::SGD made({parameters.at(0)}, torch::optim::SGDOptions(0.5));
      made.add_param_group(torch::optim::OptimizerParamGroup(
          {parameters.at(1)},
          std::make_unique<torch::optim::SGDOptions>(strategy.worker() == 0 ? 0.25 : 0.125)));
      return made;
    });
    strategy.run([&] { optimizer.minimize(net->forward(at::ones({4, 2})).sum() / 8); });
  });
  for (const auto& error : errors) {
    EXPECT_THAT(text_of(error),
                AllOf(HasSubstr("optimizer 'SGD': of group 0, lr 0.5, "),
                      HasSubstr("of group 1, lr 0.25, "), HasSubstr("of group 1, lr 0.125, ")));
  }
}

TEST(MultiWorkerDrift, IsNoneWhereAllWorkersWriteTheSame) {
  const auto errors = run_workers(2, {}, [&](auto& strategy) {
    const auto net = strategy.replicate(linear());
    for (int step = 0; step < 9; ++step) {
      strategy.run([&] {
        const torch::NoGradGuard no_grad;
        for (at::Tensor& each : net->parameters()) each.clamp_(-0.5 / (step + 1), 0.5);
      });
    }
    net.snapshot();
  });
  for (const auto& error : errors) EXPECT_EQ(text_of(error), "");
}

// Worker 1 alone writes, as a program with an error does, between two comparisons of runs.
void write_alone(MultiWorkerMirroredStrategy& strategy, const Variable& v) {
  const torch::NoGradGuard no_grad;
  if (strategy.worker() == 1) v.tensor().data().mul_(2);
}

// Returns what the other worker throws if one leaves before a call that all make.
std::exception_ptr thrown_without(int leaver,
                                  const std::function<void(const Replicated<Linear>&)>& call) {
  const auto errors = run_workers(2, {}, [&](auto& strategy) {
    const auto net = strategy.replicate(linear(), {.name = "net"});
    if (strategy.worker() != leaver) call(net);
  });
  EXPECT_EQ(errors.at(static_cast<std::size_t>(leaver)), nullptr);
  return errors.at(static_cast<std::size_t>(1 - leaver));
}

// Regression: the others warned and ended with success, though the first worker, which was to save
// what all had trained, had been lost.
TEST(LossOfAWorker, IsThrownBySnapshotUnlessTheFirstWorkerIsLeft) {
  const auto take = [](const Replicated<Linear>& net) { net.snapshot(); };
  const std::exception_ptr error = thrown_without(0, take);
  ASSERT_NE(error, nullptr);
  EXPECT_TRUE(is_task_loss(error_of(error))) << text_of(error);
  testing::Warnings warnings;
  EXPECT_EQ(text_of(thrown_without(1, take)), "");
  EXPECT_THAT(warnings.text(), HasSubstr("the values are those of this worker"));
}

// Regression: each worker that was left wrote the file, beside what the first one had not saved.
TEST(LossOfAWorker, LetsNobodyButTheFirstWorkerWriteAFile) {
  const testing::TemporaryFolder folder;
  const auto save = [&](const Replicated<Linear>& net) {
    save_values(folder.file("values"), {{"weight", net.parameters().front()}});
  };
  const std::exception_ptr error = thrown_without(0, save);
  ASSERT_NE(error, nullptr);
  EXPECT_TRUE(is_task_loss(error_of(error))) << text_of(error);
  EXPECT_THAT(text_of(error), HasSubstr("save_values(), which has written no file"));
  EXPECT_TRUE(folder.names().empty());
  testing::Warnings warnings;
  EXPECT_EQ(text_of(thrown_without(1, save)), "");
  EXPECT_THAT(warnings.text(), HasSubstr("the file has those of this worker"));
  EXPECT_THAT(folder.names(), ::testing::ElementsAre("values"));
}

// Regression: the first worker's values were returned and written.
TEST(MultiWorkerDrift, IsFoundBeforeValuesAreSaved) {
  const testing::TemporaryFolder folder;
  const auto errors = run_workers(2, {}, [&](auto& strategy) {
    const auto net = strategy.replicate(linear(), {.name = "net"});
    net.snapshot();
    write_alone(strategy, net.parameters().front());
    for (const bool is_file : {false, true}) {
      try {
        is_file ? save_values(folder.file("values"), {{"weight", net.parameters().front()}})
                : static_cast<void>(net.snapshot());
        ADD_FAILURE() << "expected an error";
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::failed_precondition);
        EXPECT_THAT(
            error.what(),
            AllOf(HasSubstr(is_file ? "[strategy.save_values]" : "[strategy.snapshot]"),
                  HasSubstr("equal values of variable 'net/weight' on all workers, got different "
                            "ones on worker:0 and worker:1")));
      }
    }
  });
  for (const auto& error : errors) EXPECT_EQ(text_of(error), "");
  EXPECT_THAT(folder.names(), ::testing::IsEmpty());
}

TEST(MultiWorkerDrift, IsFoundAtTheStartOfAnIterator) {
  const auto errors = run_workers(2, {}, [&](auto& strategy) {
    const auto net = strategy.replicate(linear(), {.name = "net"});
    const auto dataset = strategy.distribute_dataset(Dataset::range(8).batch(4));
    dataset.iterator();
    write_alone(strategy, net.parameters().front());
    dataset.iterator();
  });
  for (const auto& error : errors)
    EXPECT_THAT(text_of(error), HasSubstr("equal values of variable 'net/weight'"));
}

TEST(MultiWorkerDrift, OfWorkersThatNeverCombineAnythingIsWarnedOfOnce) {
  const auto warnings_of = [](int runs, bool combines) {
    testing::Warnings warnings;
    const auto errors = run_workers(2, {}, [&](auto& strategy) {
      const Variable v = strategy.variable("v", at::ones({2}));
      const SGD sgd({v}, {.learning_rate = 1.0});
      for (int run = 0; run < runs; ++run) {
        strategy.run([&] {
          if (combines) sgd.minimize(v.tensor().sum());
        });
      }
    });
    for (const auto& error : errors) EXPECT_EQ(text_of(error), "");
    return warnings.text();
  };
  for (const int runs : {1, 40}) {
    const std::string text = warnings_of(runs, false);
    EXPECT_THAT(text, HasSubstr("combine values of the 2 workers of 'multi_worker_mirrored'"));
    std::size_t count = 0;
    for (std::size_t at = text.find("trains alone"); at != std::string::npos;
         at = text.find("trains alone", at + 1))
      ++count;
    EXPECT_EQ(count, 2) << "one on each worker: " << text;
    EXPECT_THAT(warnings_of(runs, true), Not(HasSubstr("trains alone")));
  }
}

}  // namespace
}  // namespace cohort
