// SPDX-License-Identifier: Apache-2.0
// scatter_add() and so on, of local variables.
#include "cohort/variable/rows.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/index_add.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "cohort/function/trace.h"
#include "cohort/testing/throws_error.h"
#include "cohort/variable/variable.h"
#include "cohort/variable/variable_home.h"

namespace cohort {
namespace {

using testing::throws_error;
using Kind = internal::Effect::Kind;

at::Tensor longs(const std::vector<std::int64_t>& values) {
  return at::tensor(values, at::TensorOptions(at::kLong));
}
at::Tensor doubles(const std::vector<double>& values, at::ScalarType type = at::kDouble) {
  return at::tensor(values, at::TensorOptions(at::kDouble)).to(type);
}
std::vector<double> numbers(const at::Tensor& tensor) {
  const at::Tensor flat = tensor.detach().to(at::kDouble).contiguous();
  return {flat.data_ptr<double>(), flat.data_ptr<double>() + flat.numel()};
}
Variable make(const at::Tensor& value) {
  return local_variable("v", value, /*is_trainable=*/false);
}

// VAR-22
TEST(ScatterTest, ChangesOneRowAfterTheOther) {
  const Variable v = make(doubles({4}));
  const at::Tensor zero = longs({0}), two = doubles({2});
  const auto value = [&] { return v.read().item<double>(); };
  v.scatter_sub(zero, two);
  EXPECT_EQ(value(), 2);
  v.scatter_add(zero, two);
  EXPECT_EQ(value(), 4);
  v.scatter_max(zero, two);
  EXPECT_EQ(value(), 4);
  v.scatter_min(zero, two);
  EXPECT_EQ(value(), 2);
  v.scatter_mul(zero, two);
  EXPECT_EQ(value(), 4);
  v.scatter_div(zero, two);
  EXPECT_EQ(value(), 2);
  v.scatter_update(zero, doubles({7}));
  EXPECT_EQ(value(), 7);
}

TEST(ScatterTest, ARowThatComesTwiceIsChangedTwiceInOrder) {
  const Variable v = make(doubles({4, 6}));
  v.scatter_div(longs({1, 0, 1}), doubles({2, 4, 3}));
  EXPECT_THAT(numbers(v.read()), ::testing::ElementsAre(1, 1));
  v.scatter_update(longs({0, 0}), doubles({8, 9}));
  EXPECT_THAT(numbers(v.read()), ::testing::ElementsAre(9, 1));
}

TEST(ScatterTest, RowsHaveTheOtherDimensionsAndIndicesMayBeInt32) {
  const Variable v = make(at::zeros({3, 2, 2}));
  const at::Tensor rows = at::full({2, 2, 2}, 1.5).expand({2, 2, 2});
  v.scatter_add(longs({2, 0}).to(at::kInt), rows);
  EXPECT_TRUE(v.read().equal(at::zeros({3, 2, 2}).index_add(0, longs({2, 0}), rows)));
  v.scatter_add(longs({}), at::empty({0, 2, 2}));
  EXPECT_EQ(v.read().sum().item<double>(), 12);
}

TEST(ScatterTest, WorksForEveryTypeOfNumber) {
  for (const at::ScalarType type : {at::kByte, at::kChar, at::kShort, at::kInt, at::kLong,
                                    at::kHalf, at::kBFloat16, at::kFloat, at::kDouble}) {
    SCOPED_TRACE(dtype_name(type));
    const Variable v = make(doubles({12, 5}, type));
    v.scatter_mul(longs({0}), doubles({2}, type));
    v.scatter_div(longs({0}), doubles({3}, type));
    v.scatter_sub(longs({0}), doubles({1}, type));
    v.scatter_max(longs({1}), doubles({6}, type));
    EXPECT_THAT(numbers(v.read()), ::testing::ElementsAre(7, 6));
  }
  const Variable truth = make(at::zeros({2}, at::kBool));
  truth.scatter_update(longs({1}), at::ones({1}, at::kBool));
  EXPECT_THAT(numbers(truth.read()), ::testing::ElementsAre(0, 1));
}

TEST(ScatterTest, IntegersWrapAround) {
  constexpr std::int64_t kMin = std::numeric_limits<std::int64_t>::min();
  const Variable v = make(longs({kMin, kMin, kMin}));
  v.scatter_div(longs({0}), longs({-1}));
  v.scatter_sub(longs({1}), longs({1}));
  v.scatter_mul(longs({2}), longs({-1}));
  EXPECT_TRUE(v.read().equal(longs({kMin, std::numeric_limits<std::int64_t>::max(), kMin})));
}

TEST(ScatterTest, NanIsTheMinimumAndTheMaximum) {
  const double nan = std::nan("");
  const Variable v = make(doubles({nan, 1, nan, 1}));
  v.scatter_min(longs({0, 1}), doubles({1, nan}));
  v.scatter_max(longs({2, 3}), doubles({1, nan}));
  for (const double value : numbers(v.read())) EXPECT_TRUE(std::isnan(value));
}

TEST(ScatterTest, RowsMayBeAViewOfTheVariable) {
  const Variable v = make(doubles({1, 2, 3}));
  v.scatter_update(longs({1, 2}), v.tensor().slice(0, 0, 2));
  EXPECT_THAT(numbers(v.read()), ::testing::ElementsAre(1, 1, 2));
}

TEST(ScatterTest, AutogradDetectsTheChange) {
  const Variable v = local_variable("w", doubles({2, 3}));
  const at::Tensor loss = v.tensor().square().sum();
  v.scatter_add(longs({0}), doubles({1}));
  EXPECT_THROW(loss.backward(), c10::Error);
}

TEST(ScatterTest, WrongArgumentsChangeNothing) {
  const Variable v = make(at::zeros({3, 2}));
  const auto refused = [&](const at::Tensor& indices, const at::Tensor& rows,
                           const std::string& words) {
    EXPECT_THAT([&] { v.scatter_add(indices, rows); },
                throws_error(ErrorCode::invalid_argument, words));
    EXPECT_EQ(v.read().abs().sum().item<double>(), 0);
  };
  const at::Tensor rows = at::ones({2, 2});
  refused(at::Tensor(), rows, "[variable.scatter_add] expected indices, got an undefined");
  refused(doubles({0, 1}), rows, "got float64[2]");
  refused(longs({0}).reshape({1, 1}), rows, "got int64[1, 1]");
  refused(longs({0, 3}), rows,
          "expected indices of the 3 rows of variable 'v', got 3 at position 1");
  refused(longs({0, -1}), rows, "got -1");
  refused(longs({0, 1}), at::Tensor(), "expected rows float32[2, 2], got an undefined");
  refused(longs({0}), rows, "expected dense rows float32[1, 2]");
  refused(longs({0, 1}), at::ones({2, 3}), "got float32[2, 3]");
  refused(longs({0, 1}), rows.to(at::kDouble), "got float64[2, 2]");
  refused(longs({0, 1}), rows.to_sparse(), "dense rows");
  EXPECT_THAT([&] { make(at::zeros({})).scatter_add(longs({0}), at::ones({1})); },
              throws_error(ErrorCode::invalid_argument, "a variable that has rows"));
  EXPECT_THAT(
      [&] { make(at::zeros({1}, at::kBool)).scatter_add(longs({0}), at::ones({1}, at::kBool)); },
      throws_error(ErrorCode::invalid_argument, "use scatter_update()"));
  EXPECT_THAT(
      [&] {
        make(longs({1, 2})).scatter_div(longs({0, 1}), longs({1, 0}));
      },
      throws_error(ErrorCode::invalid_argument, "other than 0"));
}

// The ids changed while the rows were written, and named rows that do not exist.
TEST(ScatterTest, MayTakeTheVariableItselfAsIds) {
  const Variable v = make(longs({3, 0, 1, 2}));
  v.scatter_update(v.tensor(), at::full({4}, std::int64_t{1} << 40, at::TensorOptions(at::kLong)));
  EXPECT_THAT(numbers(v.read()), ::testing::Each(static_cast<double>(std::int64_t{1} << 40)));
}

TEST(ScatterTest, OfSeveralVariablesAreCheckedBeforeTheFirstChanges) {
  const Variable a = make(at::zeros({2})), b = make(at::zeros({1}));
  const VariableWrite good{a, Kind::scatter_add, at::ones({1}), longs({1})};
  const VariableWrite wrong{b, Kind::scatter_add, at::ones({1}), longs({1})};
  EXPECT_THAT(
      [&] {
        write_values(std::array{good, wrong});
      },
      throws_error(ErrorCode::invalid_argument, "the 1 rows"));
  EXPECT_THAT(numbers(a.read()), ::testing::Each(0));
  write_values(std::array{good, good});
  EXPECT_THAT(numbers(a.read()), ::testing::ElementsAre(0, 2));
}

// A traced step would change the row once, at its trace.
TEST(ScatterTest, OfAVariableThatThePlaceDoesNotHaveIsRefusedInATrace) {
  const Variable v = make(at::zeros({2}));
  EXPECT_THAT(([&] {
                function::trace({at::ones({1})}, {at::ones({1})},
                                [&](const std::vector<at::Tensor>& inputs) {
                                  v.scatter_add(longs({0}), inputs[0]);
                                  return inputs;
                                },
                                {});
              }),
              throws_error(ErrorCode::invalid_argument, "does not belong to the strategy"));
  EXPECT_THAT(numbers(v.read()), ::testing::Each(0));
}

// Numbers of the host.

TEST(AssignNumberTest, BecomesTheVariablesType) {
  const Variable real = make(at::zeros({})), whole = make(at::zeros({}, at::kInt));
  const Variable truth = make(at::zeros({}, at::kBool));
  real.assign(5);
  real.assign_add(1.5);
  real.assign_sub(std::int64_t{2});
  EXPECT_EQ(real.read().item<double>(), 4.5);
  whole.assign(-7);
  whole.assign_sub(1);
  EXPECT_EQ(whole.read().item<int>(), -8);
  truth.assign(true);
  EXPECT_TRUE(truth.read().item<bool>());
  real.assign(std::numeric_limits<double>::infinity());
  EXPECT_TRUE(std::isinf(real.read().item<double>()));
}

TEST(AssignNumberTest, IsRefusedIfTheTypeCannotHoldIt) {
  const Variable whole = make(at::zeros({}, at::kInt));
  const auto refused = [&](const Variable& v, const at::Scalar& number, const std::string& words) {
    EXPECT_THAT([&] { v.assign(number); }, throws_error(ErrorCode::invalid_argument, words));
  };
  refused(whole, 1.5, "expected a number that int32 can hold without a cast, got 1.5");
  refused(whole, 2.0, "got 2.0");
  refused(whole, true, "got true");
  refused(whole, std::int64_t{1} << 40, "got 1099511627776");
  refused(make(at::zeros({}, at::kByte)), -1, "got -1");
  refused(make(at::zeros({}, at::kChar)), 128, "got 128");
  refused(make(at::zeros({}, at::kShort)), 40000, "got 40000");
  refused(make(at::zeros({}, at::kBool)), 1, "got 1");
  refused(make(at::zeros({})), 1e300, "float32 can hold");
  refused(make(at::zeros({})), c10::complex<double>(0, 1), "a complex number");
  refused(make(at::zeros({2})), 1.0, "expected float32[2], got a single number");
  EXPECT_EQ(whole.read().item<int>(), 0);
}

}  // namespace
}  // namespace cohort
