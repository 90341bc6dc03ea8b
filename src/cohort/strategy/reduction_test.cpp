// SPDX-License-Identifier: Apache-2.0
// reduce() along dimensions. The comment above a test names the rows of the specification.
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "cohort/collective/group.h"
#include "cohort/strategy/synchronous_strategy.h"
#include "cohort/testing/on_workers.h"
#include "cohort/testing/throws_error.h"

namespace cohort {
namespace {

using testing::throws_error;
using Values = PerReplica<at::Tensor>;

class ReduceAlong : public ::testing::Test {
 protected:
  static double number(const at::Tensor& value) { return value.item<double>(); }
  MirroredStrategy two_{{"CPU:0", "CPU:1"}};
};

// RED-03, RED-05, RED-08
TEST_F(ReduceAlong, WeighsUnevenBatchesByTheirSizes) {
  const Values uneven({at::tensor({1.0, 2.0, 3.0, 4.0}), at::tensor({5.0, 9.0})});
  EXPECT_EQ(number(two_.reduce("SUM", uneven, 0)), 24);
  EXPECT_EQ(number(two_.reduce("Mean", uneven, 0)), 4);
  EXPECT_EQ(number(two_.reduce("mean", uneven, -1)), 4);
  const Values one_empty({at::zeros({0}, at::kDouble), at::tensor({2.0, 4.0})});
  EXPECT_EQ(number(two_.reduce("mean", one_empty, 0)), 3);
  EXPECT_TRUE(std::isnan(number(two_.reduce("mean", Values({at::zeros({0}), at::zeros({0})}), 0))));
}

// RED-09
TEST_F(ReduceAlong, TakesSeveralAxes) {
  const at::Tensor x = at::arange(6, at::kDouble).view({2, 3});
  const Values both({x, x.add(10)});
  EXPECT_EQ(number(two_.reduce(ReduceOp::sum, both, {0, 1})), 2 * 15 + 60);
  EXPECT_EQ(number(two_.reduce(ReduceOp::mean, both, {1, 0})), 7.5);
  EXPECT_TRUE(two_.reduce(ReduceOp::mean, both, 1).equal(at::tensor({6.0, 9.0})));
}

// RED-13
TEST_F(ReduceAlong, AMeanOfIntegersIsExact) {
  const Values bytes({at::full({2}, 120, at::kChar), at::full({1}, 121, at::kChar)});
  const at::Tensor mean = two_.reduce(ReduceOp::mean, bytes, 0);
  EXPECT_EQ(mean.scalar_type(), at::kFloat);
  EXPECT_FLOAT_EQ(mean.item<float>(), 361.0F / 3);
  EXPECT_EQ(two_.reduce(ReduceOp::mean,
                        Values({at::full({1}, 1, at::kInt), at::full({1}, 2, at::kInt)}), 0)
                .scalar_type(),
            at::kDouble);
  const Values halves({at::full({3000}, 1, at::kHalf), at::full({1}, 1, at::kHalf)});
  EXPECT_EQ(number(two_.reduce(ReduceOp::mean, halves, 0)), 1) << "counts above 2048";
}

// RED-10
TEST_F(ReduceAlong, RefusesAnAxisThatIsNotThere) {
  const Values values({at::zeros({2}), at::zeros({2})});
  EXPECT_THAT([&] { two_.reduce(ReduceOp::mean, values, 1); },
              throws_error(ErrorCode::invalid_argument, "an axis of float32[2], got 1"));
  EXPECT_THAT(
      [&] {
        two_.reduce(ReduceOp::sum, values, {0, -1});
      },
      throws_error(ErrorCode::invalid_argument, "each axis once"));
  EXPECT_THAT([&] { two_.reduce("max", values); },
              throws_error(ErrorCode::invalid_argument, "\"SUM\" or \"MEAN\", got \"max\""));
}

// RED-19
TEST_F(ReduceAlong, OfOneReplicaIsLocal) {
  OneDeviceStrategy one("CPU:0");
  const auto range = Values::bare(at::arange(10));
  EXPECT_EQ(one.reduce(ReduceOp::sum, range).size(0), 10);
  EXPECT_EQ(number(one.reduce(ReduceOp::sum, range, 0)), 45);
  EXPECT_EQ(number(default_strategy().reduce(ReduceOp::mean, range, 0)), 4.5);
}

TEST_F(ReduceAlong, AValueOfAllReplicasCountsOnceForEach) {
  const auto value = Values::bare(at::tensor({1.0, 3.0}));
  EXPECT_EQ(number(two_.reduce(ReduceOp::sum, value, 0)), 8);
  EXPECT_EQ(number(two_.reduce(ReduceOp::mean, value, 0)), 2);
  const auto mirrored = Values::mirrored({at::tensor({2.0}), at::tensor({2.0})});
  EXPECT_EQ(number(two_.reduce(ReduceOp::mean, mirrored)), 2);
  EXPECT_THAT([&] { two_.reduce(ReduceOp::sum, mirrored); },
              throws_error(ErrorCode::invalid_argument, "the same for all"));
}

TEST_F(ReduceAlong, WorkersReduceTogether) {
  InProcessWorkers workers(2);
  const std::vector<double> means = testing::on_workers<double>(2, [&](int rank) {
    MultiWorkerMirroredStrategy strategy(workers.group(rank), {.devices = {"CPU:0"}});
    const Values own({rank == 0 ? at::tensor({1.0, 2.0, 6.0}) : at::tensor({7.0})});
    return number(strategy.reduce(ReduceOp::mean, own, 0));
  });
  EXPECT_EQ(means, (std::vector<double>{4, 4}));
}

}  // namespace
}  // namespace cohort
