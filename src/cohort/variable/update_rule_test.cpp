// SPDX-License-Identifier: Apache-2.0
#include "cohort/variable/update_rule.h"

#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include <array>
#include <limits>

#include "cohort/testing/slotless_rule.h"
#include "cohort/testing/throws_error.h"

namespace cohort::variable {
namespace {

using testing::throws_error;

// p -= rate*g, with an unused weight, so that the rule has two hyperparameters.
class TwoHyperRule final : public testing::SlotlessRule {
 public:
  std::string_view name() const override { return "two"; }
  std::span<const std::string_view> hyperparameter_names() const override {
    static constexpr std::array<std::string_view, 2> kNames{"rate", "weight"};
    return kNames;
  }
  void update(at::Tensor&, const at::Tensor&, std::span<at::Tensor>, const at::Tensor&,
              std::span<const double>) const override {}
};

class CheckUpdate : public ::testing::Test {
 protected:
  static at::Tensor tensor(std::vector<std::int64_t> sizes, at::ScalarType dtype = at::kFloat) {
    return at::ones(sizes, at::TensorOptions(dtype));
  }
  auto checking(at::Tensor value, at::Tensor gradient, std::vector<double> hyper = {0.1, 1}) {
    return [=, this] { check_update(rule_, value, gradient, hyper, "model/w"); };
  }
  TwoHyperRule rule_;
};

TEST_F(CheckUpdate, AcceptsAGradientOfTheVariablesSpec) {
  EXPECT_NO_THROW(checking(tensor({2, 3}), tensor({2, 3}))());
  EXPECT_NO_THROW(checking(tensor({2, 3}, at::kDouble), tensor({2, 3}, at::kDouble))());
  EXPECT_NO_THROW(checking(tensor({}), tensor({}))());
}

TEST_F(CheckUpdate, AcceptsAGradientThatIsNotContiguous) {
  EXPECT_NO_THROW(checking(tensor({2, 3}), tensor({3, 2}).t())());
}

TEST_F(CheckUpdate, NamesVariableRuleAndBothSpecsOfAWrongShape) {
  EXPECT_THAT(checking(tensor({2, 3}), tensor({3, 2})),
              throws_error(ErrorCode::invalid_argument,
                           "expected a gradient of float32[2, 3], got float32[3, 2] (variable "
                           "'model/w', rule 'two')"));
}

TEST_F(CheckUpdate, RefusesAGradientOfAnotherDtype) {
  EXPECT_THAT(checking(tensor({2}), tensor({2}, at::kDouble)),
              throws_error(ErrorCode::invalid_argument,
                           "expected a gradient of float32[2], got float64[2]"));
}

TEST_F(CheckUpdate, RefusesAnUndefinedGradient) {
  EXPECT_THAT(checking(tensor({2}), at::Tensor()),
              throws_error(ErrorCode::invalid_argument, "undefined"));
}

TEST_F(CheckUpdate, TakesASparseGradientOfWholeRowsAlone) {
  EXPECT_NO_THROW(checking(tensor({2, 3}), tensor({2, 3}).to_sparse(1))());
  EXPECT_THAT(checking(tensor({2, 3}), tensor({2, 3}).to_sparse()),
              throws_error(ErrorCode::invalid_argument, "got another layout"));
  EXPECT_THAT(checking(tensor({2, 3}), tensor({3, 3}).to_sparse(1)),
              throws_error(ErrorCode::invalid_argument, "got float32[3, 3]"));
}

TEST_F(CheckUpdate, NamesTheDtypeOfAVariableItCannotUpdate) {
  EXPECT_THAT(checking(tensor({2}, at::kBFloat16), tensor({2}, at::kBFloat16)),
              throws_error(ErrorCode::unimplemented, "got bfloat16 (variable 'model/w'"));
}

TEST_F(CheckUpdate, NamesTheHyperparametersWhenTheirCountIsWrong) {
  EXPECT_THAT(checking(tensor({2}), tensor({2}), {0.1}),
              throws_error(ErrorCode::invalid_argument,
                           "expected 2 hyperparameters (rate, weight), got 1"));
}

TEST_F(CheckUpdate, NamesAHyperparameterThatIsNotFinite) {
  EXPECT_THAT(checking(tensor({2}), tensor({2}), {0.1, std::numeric_limits<double>::quiet_NaN()}),
              throws_error(ErrorCode::invalid_argument, "expected a finite weight, got nan"));
}

}  // namespace
}  // namespace cohort::variable
