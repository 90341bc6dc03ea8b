// SPDX-License-Identifier: Apache-2.0
// How the gradients of replicas become one: each reduction, and several passes in one step, give
// the numbers of one process.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <random>

#include "cohort/optimizer/optimizers.h"
#include "cohort/strategy/synchronous_strategy.h"
#include "cohort/synchronous/whole_batch_fixture.h"
#include "cohort/testing/test_seed.h"
#include "cohort/testing/throws_error.h"

namespace cohort {
namespace {

using testing::Sizes;
using testing::Tensors;
using torch::nn::Linear;

constexpr int kSteps = 20;

at::Tensor layer_batch(int step) {
  torch::manual_seed(static_cast<std::uint64_t>(step) + 1);
  return torch::randn({12, 5}, torch::kDouble);
}

Linear make_layer() {
  torch::manual_seed(1);
  Linear layer(5, 3);
  layer->to(torch::kDouble);
  return layer;
}

at::Tensor losses_of(torch::nn::LinearImpl& layer, const at::Tensor& x) {
  return layer.forward(x).tanh().square().sum(1);
}

class GradientReductions : public ::testing::Test {
 protected:
  // Values after training in which each replica makes a step with its part of each batch.
  template <class Step>
  Tensors trained(const Sizes& sizes, Step step) {
    MirroredStrategy strategy(testing::devices_for(sizes));
    const auto model = strategy.replicate(make_layer);
    const SGD sgd(model.parameters(), {.learning_rate = 0.02});
    for (int i = 0; i < kSteps; ++i) {
      strategy.run([&](const at::Tensor& x) { step(sgd, *model, x); },
                   testing::parts(layer_batch(i), sizes));
    }
    EXPECT_EQ(sgd.iterations(), kSteps);
    return testing::values_of(model.variables());
  }

  // For several partitions of the batch, compares steps of the replicas with those of one process
  // that minimizes whole_loss(losses of all rows, partition).
  template <class Step, class WholeLoss>
  void expect_that_of_one_process(Step step, WholeLoss whole_loss) {
    for (const Sizes& sizes : testing::partitions()) {
      SCOPED_TRACE("first part " + std::to_string(sizes[0]));
      const auto alone = [&](const SGD& sgd, torch::nn::LinearImpl& layer, const at::Tensor& x) {
        sgd.minimize(whole_loss(losses_of(layer, x), sizes));
      };
      testing::expect_close(trained(sizes, step), trained({12}, alone), 1e-12);
    }
  }

  static auto with(GradientReduction reduction) {
    return [reduction](const SGD& sgd, torch::nn::LinearImpl& layer, const at::Tensor& x) {
      sgd.minimize(average_loss(losses_of(layer, x), {.reduction = reduction}));
    };
  }
};

TEST_F(GradientReductions, MeanOverGlobalBatchCountsAllRowsEqually) {
  expect_that_of_one_process(with(GradientReduction::mean_over_global_batch),
                             [](const at::Tensor& all, const Sizes&) { return all.mean(); });
}

// The parts of `rows` rows that some random cuts make, empty ones among them.
Sizes random_partition(std::int64_t rows, std::mt19937& random) {
  const int replicas = std::uniform_int_distribution<int>(2, 4)(random);
  Sizes cuts = {0, rows};
  for (int i = 1; i < replicas; ++i)
    cuts.push_back(std::uniform_int_distribution<std::int64_t>(0, rows)(random));
  std::sort(cuts.begin(), cuts.end());
  Sizes sizes;
  for (std::size_t i = 1; i < cuts.size(); ++i) sizes.push_back(cuts[i] - cuts[i - 1]);
  return sizes;
}

// Each step has other sizes.
TEST_F(GradientReductions, RandomSizesGiveTheGradientOfOneProcess) {
  const testing::TestSeed seed;
  std::mt19937 random(seed.value());
  for (int trial = 0; trial < 40; ++trial) {
    const Sizes sizes = random_partition(12, random);
    SCOPED_TRACE("sizes " + c10::str(at::IntArrayRef(sizes)));
    const at::Tensor x = layer_batch(trial);
    const auto gradients = [&](const Sizes& parts) {
      MirroredStrategy strategy(testing::devices_for(parts));
      const auto model = strategy.replicate(make_layer);
      const SGD sgd(model.parameters(), {.learning_rate = 1});
      const Tensors before = testing::values_of(model.variables());
      strategy.run(
          [&](const at::Tensor& own) { sgd.minimize(average_loss(losses_of(*model, own))); },
          testing::parts(x, parts));
      Tensors after = testing::values_of(model.variables());
      for (std::size_t i = 0; i < after.size(); ++i) after[i] = before[i] - after[i];
      return after;
    };
    testing::expect_close(gradients(sizes), gradients({12}), 1e-12);
  }
}

// Replicas of one CPU share its memory.
TEST_F(GradientReductions, EachWayToAddOverDevicesGivesTheSameBits) {
  const auto with_ops = [](CrossDeviceOps ops) {
    MirroredStrategy strategy({"CPU:0", "CPU:1", "CPU:2"}, {.cross_device_ops = ops});
    const auto model = strategy.replicate(make_layer);
    const SGD sgd(model.parameters(), {.learning_rate = 0.1});
    const auto sums = strategy.run(
        [&](const at::Tensor& x) {
          sgd.minimize(average_loss(losses_of(*model, x)));
          return get_replica_context()->all_reduce(ReduceOp::sum, x.sum(0));
        },
        testing::parts(layer_batch(0), {3, 2, 7}));
    Tensors values = testing::values_of(model.variables());
    values.push_back(sums[0]);
    values.push_back(strategy.reduce(ReduceOp::mean, sums, Axes::none()));
    return values;
  };
  const Tensors expected = with_ops(CrossDeviceOps::reduction_to_one_device);
  testing::expect_close(with_ops(CrossDeviceOps::hierarchical_copy), expected, 0);
  EXPECT_THAT([&] { with_ops(static_cast<CrossDeviceOps>(2)); },
              testing::throws_error(ErrorCode::invalid_argument, "got the number 2"));
}

TEST_F(GradientReductions, SumAddsTheLossesOfAllRows) {
  expect_that_of_one_process(with(GradientReduction::sum),
                             [](const at::Tensor& all, const Sizes&) { return all.sum(); });
}

TEST_F(GradientReductions, MeanOfMeansCountsAllReplicasEqually) {
  expect_that_of_one_process(with(GradientReduction::mean_of_means),
                             [](const at::Tensor& all, const Sizes& sizes) {
                               at::Tensor sum = torch::zeros({}, torch::kDouble);
                               for (const at::Tensor& part : all.split_with_sizes(sizes))
                                 if (part.numel() > 0) sum = sum + part.mean();
                               return sum / static_cast<double>(sizes.size());
                             });
}

// The replicas meet in apply_gradients() alone, so they may have different numbers of passes.
TEST_F(GradientReductions, SeveralPassesAreReducedOnce) {
  const auto step = [](const SGD& sgd, torch::nn::LinearImpl& layer, const at::Tensor& x) {
    const auto gradients_of = [&](const at::Tensor& some) {
      return sgd.compute_gradients(average_loss(losses_of(layer, some), {.global_batch_size = 12}));
    };
    auto total = gradients_of(x.narrow(0, 0, 0));
    for (const at::Tensor& some : x.split(4)) {
      const auto gradients = gradients_of(some);
      for (std::size_t i = 0; i < total.size(); ++i)
        total[i].first = total[i].first + gradients[i].first;
    }
    sgd.apply_gradients(total);
  };
  expect_that_of_one_process(step, [](const at::Tensor& all, const Sizes&) { return all.mean(); });
}

TEST_F(GradientReductions, TheSumOfAllReplicasIsClipped) {
  const auto step = [](const SGD& sgd, torch::nn::LinearImpl& layer, const at::Tensor& x) {
    const auto gradients = sgd.compute_gradients(average_loss(losses_of(layer, x)));
    sgd.apply_gradients(clip_by_global_norm(gradients, 0.05).gradients);
  };
  const Tensors expected = trained({12}, step);
  for (const Sizes& sizes : testing::partitions()) {
    SCOPED_TRACE("first part " + std::to_string(sizes[0]));
    testing::expect_close(trained(sizes, step), expected, 1e-12);
  }
}

}  // namespace
}  // namespace cohort
