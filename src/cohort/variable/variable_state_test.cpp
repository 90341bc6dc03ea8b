// SPDX-License-Identifier: Apache-2.0
#include "cohort/variable/variable_state.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>

#include <array>

#include "cohort/testing/throws_error.h"

namespace cohort {
namespace {

// sum += g; value -= sum.
class SumRule final : public variable::UpdateRule {
 public:
  explicit SumRule(std::string_view name) : name_(name) {}
  std::string_view name() const override { return name_; }
  std::span<const std::string_view> hyperparameter_names() const override { return {}; }
  std::span<const std::string_view> slot_names() const override {
    static constexpr std::array<std::string_view, 1> kNames{"sum"};
    return kNames;
  }
  std::vector<at::Tensor> create_slots(const at::Tensor& variable,
                                       std::span<const double>) const override {
    return {at::zeros_like(variable)};
  }
  void update(at::Tensor& new_value, const at::Tensor& value, std::span<at::Tensor> slots,
              const at::Tensor& gradient, std::span<const double>) const override {
    slots[0].add_(gradient);
    new_value.copy_(value - slots[0]);
  }

 private:
  std::string_view name_;
};

at::Tensor of_two(double value) { return at::full({2}, value, at::TensorOptions(at::kFloat)); }

class VariableStateTest : public ::testing::Test {
 protected:
  VariableState::Fresh reserve(std::string_view name = "a") const {
    return state_.reserve({rule_, name}, {}, "w");
  }
  void apply(double gradient, VariableState::Fresh fresh, std::string_view name = "a") {
    at::Tensor value = state_.value();
    state_.apply({rule_, name}, std::move(fresh), value, of_two(gradient), {});
  }
  double value() const { return state_.value()[0].item<double>(); }

  const SumRule rule_{"sum"}, other_{"other"};
  VariableState state_{of_two(10)};
};

TEST_F(VariableStateTest, SlotsAreMadeByTheFirstUpdateAlone) {
  EXPECT_FALSE(reserve().empty());
  EXPECT_TRUE(state_.slots().empty()) << "reserving changes nothing";
  apply(1, reserve());
  EXPECT_EQ(value(), 9);
  EXPECT_TRUE(reserve().empty());
  apply(1, reserve());
  EXPECT_EQ(value(), 7);
}

TEST_F(VariableStateTest, UpdatesThatWereReservedTogetherShareTheSlotsOfTheFirst) {
  VariableState::Fresh first = reserve(), second = reserve();
  apply(1, std::move(first));
  apply(1, std::move(second));
  EXPECT_EQ(value(), 7);
  EXPECT_EQ(state_.slots().size(), 1U);
}

TEST_F(VariableStateTest, EachNameHasItsOwnSlots) {
  apply(1, reserve("a"), "a");
  apply(1, reserve("b"), "b");
  EXPECT_EQ(value(), 8);
  EXPECT_EQ(state_.slots().size(), 2U);
}

// Slots of another rule are other tensors, perhaps fewer.
TEST_F(VariableStateTest, TheSlotsOfAnOptimizerBelongToOneRule) {
  VariableState::Fresh first = reserve(), second = state_.reserve({other_, "a"}, {}, "w");
  apply(1, std::move(first));
  at::Tensor value = state_.value();
  state_.apply({other_, "a"}, std::move(second), value, of_two(1), {});
  EXPECT_EQ(this->value(), 8) << "reserved together: each its own";
  apply(1, {}, "a");
  VariableState fresh(of_two(0));
  at::Tensor next = fresh.value();
  fresh.apply({rule_, "a"}, fresh.reserve({rule_, "a"}, {}, "w"), next, of_two(1), {});
  EXPECT_THAT(
      [&] {
        fresh.reserve({other_, "a"}, {}, "w");
      },
      testing::throws_error(ErrorCode::already_exists,
                            "expected the rule 'sum' of optimizer 'a', which has slots of "
                            "it, got 'other' (variable 'w')"));
}

TEST_F(VariableStateTest, ANewValueMayBeAnotherTensor) {
  at::Tensor next = of_two(0);
  state_.apply({rule_, "a"}, reserve(), next, of_two(1), {});
  EXPECT_EQ(value(), 10) << "until it is exchanged";
  const at::Tensor old = state_.exchange(next);
  EXPECT_EQ(value(), 9);
  EXPECT_EQ(old[0].item<double>(), 10);
}

}  // namespace
}  // namespace cohort
