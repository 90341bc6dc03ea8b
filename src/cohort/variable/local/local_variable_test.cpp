// SPDX-License-Identifier: Apache-2.0
#include <ATen/TensorOperators.h>
#include <ATen/ops/_neg_view.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>
#include <gtest/gtest.h>

#include <array>

#include "cohort/function/variable_read.h"
#include "cohort/testing/throws_error.h"
#include "cohort/variable/hyperparameter.h"
#include "cohort/variable/variable.h"
#include "cohort/variable/variable_home.h"

namespace cohort {
namespace {

using testing::throws_error;

// sum += g; value -= rate*sum. One slot, so that a lost slot changes the result.
class SummingRule final : public variable::UpdateRule {
 public:
  explicit SummingRule(std::string_view name = "summing") : name_(name) {}
  std::string_view name() const override { return name_; }
  std::span<const std::string_view> hyperparameter_names() const override { return kHyper; }
  std::span<const std::string_view> slot_names() const override { return kSlots; }
  std::vector<at::Tensor> create_slots(const at::Tensor& variable,
                                       std::span<const double>) const override {
    ++slots_created;
    return {at::zeros_like(variable.detach())};
  }
  void update(at::Tensor& new_value, const at::Tensor& value, std::span<at::Tensor> slots,
              const at::Tensor& gradient, std::span<const double> hyper) const override {
    slots[0].add_(gradient);
    new_value.detach().copy_(value.detach() - slots[0] * hyper[0]);
  }
  mutable int slots_created = 0;

 private:
  const std::string_view name_;
  static constexpr std::array<std::string_view, 1> kHyper{"rate"};
  static constexpr std::array<std::string_view, 1> kSlots{"sum"};
};

class LocalVariableTest : public ::testing::Test {
 protected:
  static at::Tensor filled(double value, std::vector<std::int64_t> sizes = {2}) {
    return at::full(sizes, value, at::TensorOptions(at::kFloat));
  }
  static double first(const at::Tensor& tensor) { return tensor.flatten()[0].item<double>(); }
  void apply(double gradient, double rate = 1) {
    const std::array hyper{make_hyperparameter(rate)};
    apply_updates({rule_, "one"}, std::array{Update{variable_, filled(gradient)}}, hyper);
  }
  at::Tensor tensor_ = filled(1);
  Variable variable_ = local_variable("w", tensor_);
  SummingRule rule_;
};

// Regression: the rules read the memory as it is, so such a gradient had the wrong sign.
TEST_F(LocalVariableTest, GradientsMayBeLazilyNegated) {
  const std::array hyper{make_hyperparameter(1)};
  const at::Tensor negated = at::_neg_view(filled(3));
  ASSERT_TRUE(negated.is_neg());
  apply_updates({rule_, "one"}, std::array{Update{variable_, negated}}, hyper);
  EXPECT_EQ(first(variable_.read()), 4);
}

TEST_F(LocalVariableTest, IsTheTensorItWasMadeWith) {
  EXPECT_TRUE(variable_.tensor().is_same(tensor_));
  EXPECT_TRUE(variable_.tensor().requires_grad());
  EXPECT_EQ(variable_.spec().to_string(), "float32[2]");
  EXPECT_EQ(variable_.name(), "w");
}

TEST_F(LocalVariableTest, ReadGivesACopy) {
  const at::Tensor before = variable_.read();
  variable_.assign(filled(5));
  EXPECT_EQ(first(before), 1);
  before.add_(100);
  EXPECT_EQ(first(tensor_), 5);
}

// Regression: a term of a loss that had read() in place of tensor() was not trained, without a
// word.
TEST_F(LocalVariableTest, GradientsOfWhatWasReadReachTheVariable) {
  const auto gradient_of = [&](const at::Tensor& loss) {
    tensor_.mutable_grad() = at::Tensor();
    loss.backward();
    return tensor_.grad();
  };
  const at::Tensor by_tensor = gradient_of((tensor_ * 3 + tensor_ * tensor_).sum());
  const at::Tensor read = variable_.read();
  EXPECT_TRUE(gradient_of((tensor_ * 3 + read * read).sum()).equal(by_tensor));
  const at::Tensor written = variable_.read().mul_(2);
  EXPECT_EQ(first(gradient_of((written * written).sum())), 8);
}

// Regression: the value changed while it was read.
TEST_F(LocalVariableTest, AViewOfTheVariableItselfIsAssignedAsItWas) {
  const Variable q = local_variable("q", at::arange(4, at::kFloat).reshape({2, 2}));
  const at::Tensor start = q.read().detach().clone();
  q.assign(q.tensor().detach().select(1, 0).unsqueeze(0).expand({2, 2}));
  EXPECT_TRUE(q.read().equal(start.select(1, 0).unsqueeze(0).expand({2, 2})));
  q.assign(start);
  q.assign_sub(q.tensor().detach()[0].expand({2, 2}));
  EXPECT_TRUE(q.read().equal(start - start[0]));
  q.assign(start);
  q.assign_add(q.tensor().detach().t());
  EXPECT_TRUE(q.read().equal(start + start.t()));
}

// As in tf, the gradient belongs to the variable, whatever value it had when it was read.
TEST_F(LocalVariableTest, ValuesOfBeforeAndAfterAnUpdateHaveOneGradient) {
  const at::Tensor before = variable_.read();
  variable_.assign(filled(5));
  const at::Tensor after = variable_.read();
  (before * before + after * after).sum().backward();
  EXPECT_EQ(first(tensor_.grad()), 2 * 1 + 2 * 5);
}

TEST_F(LocalVariableTest, WhatIsNotTrainedIsReadWithoutAGraph) {
  EXPECT_TRUE(variable_.read().requires_grad());
  EXPECT_FALSE(local_variable("mean", filled(1), false).read().requires_grad());
  EXPECT_FALSE(local_variable("of a parameter", tensor_, false).read().requires_grad());
  EXPECT_FALSE(local_variable("n", filled(1).to(at::kLong), false).read().requires_grad());
  const c10::NoGradGuard no_grad;
  EXPECT_FALSE(variable_.read().requires_grad());
}

TEST_F(LocalVariableTest, AssigningWhatWasReadEndsItsGraph) {
  const Variable mean = local_variable("mean", filled(0), false);
  mean.assign(variable_.read() * 4);
  mean.assign_add(variable_.read());
  variable_.assign(variable_.read() + 1);
  EXPECT_EQ(first(mean.read()), 5);
  EXPECT_FALSE(mean.tensor().requires_grad());
  EXPECT_EQ(first(tensor_), 2);
  EXPECT_TRUE(tensor_.is_leaf());
}

TEST_F(LocalVariableTest, LeavesOfAGraphAreNotThoseOfWhatWasRead) {
  EXPECT_TRUE(function::leaves_of(tensor_).empty());
  EXPECT_TRUE(function::leaves_of(variable_.read() * 2).empty());
  const std::vector<at::Tensor> leaves = function::leaves_of(variable_.read() * tensor_.neg());
  ASSERT_EQ(leaves.size(), 1U);
  EXPECT_TRUE(leaves[0].is_same(tensor_));
}

TEST_F(LocalVariableTest, WhatWasReadMayBeAnInitialValue) {
  const at::Tensor copy = variable_.read();
  const Variable twin = local_variable("twin", copy);
  EXPECT_TRUE(twin.tensor().is_same(copy));
  const Variable twice = local_variable("twice", variable_.read() * 2 + twin.read());
  const Variable row = local_variable("row", variable_.read().view({1, 2}));
  const Variable mean = local_variable("mean", variable_.read(), false);
  (twin.tensor() + twice.tensor() + row.tensor() + mean.tensor()).sum().backward();
  EXPECT_EQ(first(twin.tensor().grad()), 1);
  EXPECT_EQ(first(twice.tensor().grad()), 1);
  EXPECT_EQ(first(row.tensor().grad()), 1);
  EXPECT_FALSE(mean.tensor().requires_grad());
  EXPECT_FALSE(tensor_.grad().defined());
}

TEST_F(LocalVariableTest, AssignsInPlace) {
  variable_.assign(filled(5));
  EXPECT_EQ(first(tensor_), 5);
  variable_.assign_add(filled(2));
  EXPECT_EQ(first(tensor_), 7);
  variable_.assign_sub(filled(4));
  EXPECT_EQ(first(tensor_), 3);
}

TEST_F(LocalVariableTest, AssigningAnotherSpecNamesVariableExpectedAndGot) {
  EXPECT_THAT([&] { variable_.assign(filled(0, {3})); },
              throws_error(ErrorCode::invalid_argument,
                           "expected float32[2], got float32[3] (variable 'w')"));
  EXPECT_THAT([&] { variable_.assign_add(filled(0).to(at::kLong)); },
              throws_error(ErrorCode::invalid_argument,
                           "expected float32[2], got int64[2] (variable 'w')"));
  EXPECT_THAT([&] { variable_.assign(at::Tensor()); },
              throws_error(ErrorCode::invalid_argument, "undefined"));
  EXPECT_EQ(first(tensor_), 1);
}

TEST_F(LocalVariableTest, CreatesSlotsOnceAndKeepsThem) {
  apply(1);
  apply(1);
  EXPECT_EQ(rule_.slots_created, 1);
  EXPECT_EQ(first(tensor_), 1 - 1 - 2);
}

TEST_F(LocalVariableTest, AFailedStepChangesNothing) {
  const std::array hyper{make_hyperparameter(1)};
  EXPECT_THAT(
      [&] {
        apply_updates({rule_, "one"}, std::array{Update{variable_, filled(1, {3})}}, hyper);
      },
      throws_error(ErrorCode::invalid_argument, "variable 'w', rule 'summing'"));
  EXPECT_EQ(rule_.slots_created, 0);
  EXPECT_EQ(first(tensor_), 1);
}

// The first variable was updated before the second one refused.
TEST_F(LocalVariableTest, AStepThatOneVariableRefusesChangesNoVariable) {
  const Variable second = local_variable("second", filled(5));
  const std::array hyper{make_hyperparameter(1)};
  apply_updates({rule_, "one"}, std::array{Update{second, filled(1)}}, hyper);
  const SummingRule other("other");
  EXPECT_THAT(
      [&] {
        apply_updates({other, "one"},
                      std::array{Update{variable_, filled(1)}, Update{second, filled(1)}}, hyper);
      },
      throws_error(ErrorCode::already_exists, "variable 'second'"));
  EXPECT_EQ(first(tensor_), 1);
  EXPECT_EQ(first(second.tensor()), 4);
}

TEST_F(LocalVariableTest, ABackwardThroughAnUpdatedValueIsNoticed) {
  const at::Tensor loss = (tensor_ * tensor_).sum();
  apply(1);
  EXPECT_THROW(loss.backward(), c10::Error);
}

TEST_F(LocalVariableTest, CopiesOfTheHandleAreTheSameVariable) {
  const Variable copy = variable_;
  EXPECT_TRUE(copy == variable_);
  EXPECT_FALSE(copy == local_variable("w", filled(1)));
}

TEST_F(LocalVariableTest, ATrainableOneMustBeFloatingPoint) {
  EXPECT_THAT(
      [] { local_variable("count", filled(0).to(at::kLong)); },
      throws_error(ErrorCode::invalid_argument, "got int64[2] (trainable variable 'count')"));
  const Variable count = local_variable("count", filled(0).to(at::kLong), false);
  EXPECT_FALSE(count.is_trainable());
  EXPECT_FALSE(count.tensor().requires_grad());
}

TEST_F(LocalVariableTest, RefusesTensorsThatCannotHoldAVariable) {
  EXPECT_THAT([] { local_variable("w", at::Tensor()); },
              throws_error(ErrorCode::invalid_argument, "undefined"));
  EXPECT_THAT(
      [] {
        local_variable("w", filled(1, {2, 3}).t());
      },
      throws_error(ErrorCode::invalid_argument, "dense contiguous"));
  EXPECT_THAT([&] { local_variable("w", tensor_ * 2); },
              throws_error(ErrorCode::invalid_argument, "the result of a computation"));
  EXPECT_THAT([&] { local_variable("w", variable_.read() + tensor_); },
              throws_error(ErrorCode::invalid_argument, "the result of a computation"));
  EXPECT_THAT([] { local_variable("", filled(1)); },
              throws_error(ErrorCode::invalid_argument, "expected a name"));
}

}  // namespace
}  // namespace cohort
