// SPDX-License-Identifier: Apache-2.0
// Workers whose values become different without the strategy: all find out, and no file has those
// of one worker.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <string>
#include <vector>

#include "cohort/optimizer/optimizers.h"
#include "cohort/strategy/internal/workers/workers_fixture.h"
#include "cohort/strategy/torch_optimizer.h"
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
                        HasSubstr("use minimize()")));
    }
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
