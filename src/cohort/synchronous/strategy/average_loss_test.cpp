// SPDX-License-Identifier: Apache-2.0
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cohort/collective/group.h"
#include "cohort/strategy/synchronous_strategy.h"
#include "cohort/testing/on_workers.h"
#include "cohort/testing/throws_error.h"

namespace cohort {
namespace {

using testing::throws_error;

class AverageLoss : public ::testing::Test {
 protected:
  static double number(const at::Tensor& value) { return value.item<double>(); }
  MirroredStrategy two_{{"CPU:0", "CPU:1"}};
  const PerReplica<at::Tensor> uneven_{{at::tensor({1.0, 2.0, 3.0}), at::tensor({6.0})}};
};

TEST_F(AverageLoss, IsTheMeanOverTheGlobalBatchOfUnevenBatches) {
  const auto losses = two_.run([](const at::Tensor& each) { return average_loss(each); }, uneven_);
  EXPECT_EQ(number(losses[0]), 1.5);
  EXPECT_EQ(number(two_.reduce("sum", losses)), 3);
  const auto empty =
      two_.run([](const at::Tensor& each) { return average_loss(each); },
               PerReplica<at::Tensor>({at::tensor({4.0, 2.0}), at::ones({0}, at::kDouble)}));
  EXPECT_EQ(number(two_.reduce(ReduceOp::sum, empty)), 3);
}

TEST_F(AverageLoss, TakesWeightsAndAGivenSize) {
  const auto losses = two_.run(
      [](const at::Tensor& each) {
        return average_loss(each, {.weights = at::arange(each.size(0)), .global_batch_size = 8});
      },
      uneven_);
  EXPECT_EQ(number(losses[0]), 1);
  EXPECT_EQ(number(losses[1]), 0);
  EXPECT_EQ(number(average_loss(at::tensor({1.0, 3.0}))), 2) << "of the default strategy";
}

TEST_F(AverageLoss, HasTheDivisorOfTheReduction) {
  const auto with = [&](GradientReduction reduction) {
    const auto losses = two_.run(
        [&](const at::Tensor& each) { return average_loss(each, {.reduction = reduction}); },
        uneven_);
    return std::vector<double>{number(losses[0]), number(losses[1])};
  };
  EXPECT_EQ(with(GradientReduction::mean_over_global_batch), (std::vector<double>{1.5, 1.5}));
  EXPECT_EQ(with(GradientReduction::sum), (std::vector<double>{6, 6}));
  EXPECT_EQ(with(GradientReduction::mean_of_means), (std::vector<double>{1, 3}));
  EXPECT_EQ(number(average_loss(at::ones({0}), {.reduction = GradientReduction::mean_of_means})),
            0);
  EXPECT_THAT(
      [] {
        average_loss(at::ones({2}), {.global_batch_size = 4, .reduction = GradientReduction::sum});
      },
      throws_error(ErrorCode::invalid_argument, "only with the reduction mean_over_global_batch"));
}

TEST_F(AverageLoss, CountsTheLossesOfAllWorkers) {
  InProcessWorkers workers(2);
  const auto losses = testing::on_workers<double>(2, [&](int rank) {
    MultiWorkerMirroredStrategy strategy(workers.group(rank), {.devices = {"CPU:0"}});
    return number(strategy.run([&] { return average_loss(at::ones({rank == 0 ? 3 : 1})); })[0]);
  });
  EXPECT_EQ(losses, (std::vector<double>{0.75, 0.25}));
}

TEST_F(AverageLoss, RefusesScalarsIntegersAndCrossReplicaContext) {
  EXPECT_THAT([] { average_loss(at::ones({})); },
              throws_error(ErrorCode::invalid_argument, "Reduction::None"));
  EXPECT_THAT([] { average_loss(at::arange(3)); },
              throws_error(ErrorCode::invalid_argument, "floating-point"));
  EXPECT_THAT([] { average_loss(at::ones({0})); },
              throws_error(ErrorCode::invalid_argument, "at least one example"));
  const StrategyScope scope = two_.scope();
  EXPECT_THAT([] { average_loss(at::ones({2})); },
              throws_error(ErrorCode::failed_precondition, "inside run()"));
}

TEST_F(AverageLoss, ARegularizationIsDividedByTheReplicas) {
  const auto losses = two_.run([] { return scale_regularization_loss(at::ones({}) * 3); });
  EXPECT_EQ(number(losses[0]), 1.5);
  EXPECT_EQ(number(scale_regularization_loss(at::ones({}) * 3)), 3);
}

}  // namespace
}  // namespace cohort
