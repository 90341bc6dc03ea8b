// SPDX-License-Identifier: Apache-2.0
#include "cohort/variable/variable_state.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>

#include <array>

#include "cohort/testing/throws_error.h"
#include "cohort/variable/row_gradient.h"

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
  VariableState::Reserve reserve(std::string_view name = "a", double gradient = 1) const {
    return state_.reserve({rule_, name}, of_two(gradient), {}, "w");
  }
  void apply(VariableState::Reserve reserve, std::string_view name = "a") {
    at::Tensor value = state_.value();
    state_.apply({rule_, name}, std::move(reserve), value, {});
  }
  double value() const { return state_.value()[0].item<double>(); }

  const SumRule rule_{"sum"}, other_{"other"};
  VariableState state_{of_two(10)};
};

TEST_F(VariableStateTest, ManyRowsAreUpdatedAsAllElementsAre) {
  constexpr std::int64_t kRows = 100'003;
  const at::Tensor start = at::arange(2 * kRows).to(at::kFloat).view({kRows, 2});
  const at::Tensor gradient = start.remainder(7), ids = at::arange(kRows);
  VariableState dense(start.clone()), rows(start.clone());
  const SlotKey key{rule_, "a"};
  for (int i = 0; i < 2; ++i) {
    for (VariableState* const state : {&dense, &rows}) {
      const at::Tensor given =
          state == &dense ? gradient : variable::summed_row_gradient(ids, gradient, start.sizes());
      at::Tensor value = state->value();
      state->apply(key, state->reserve(key, given, {}, "w"), value, {});
    }
  }
  EXPECT_FALSE(at::equal(dense.value(), start));
  EXPECT_TRUE(at::equal(rows.value(), dense.value()));
  EXPECT_TRUE(at::equal(rows.all_slots("w")[0].tensors[0], dense.all_slots("w")[0].tensors[0]));
}

TEST_F(VariableStateTest, FollowsTheRowsOfAnUpdate) {
  const at::Tensor start = at::arange(8).to(at::kFloat).view({4, 2});
  VariableState first(start.clone()), second(start.clone());
  const SlotKey key{rule_, "a"};
  for (const std::int64_t row : {2, 1}) {
    const at::Tensor gradient = variable::summed_row_gradient(at::full({1}, row, at::kLong),
                                                              at::ones({1, 2}), start.sizes());
    at::Tensor value = first.value();
    first.apply(key, first.reserve(key, gradient, {}, "w"), value, {});
    second.follow(first, key, second.reserve(key, gradient, {}, "w"));
    EXPECT_TRUE(at::equal(second.value(), first.value()));
    EXPECT_TRUE(at::equal(second.all_slots("w")[0].tensors[0], first.all_slots("w")[0].tensors[0]));
  }
  EXPECT_FALSE(at::equal(first.value(), start));
}

// Regression: a gradient that says that its rows are in order was not looked at, and memory beside
// the value was written.
TEST_F(VariableStateTest, RowsThatTheValueHasNotAreRefused) {
  for (const std::int64_t wrong : {-1, 2}) {
    const at::Tensor gradient = variable::summed_row_gradient(at::full({1}, wrong, at::kLong),
                                                              at::full({1}, 1.0, at::kFloat), {2});
    EXPECT_THAT(
        [&] {
          (void)state_.reserve({rule_, "a"}, gradient, {}, "w");
        },
        testing::throws_error(ErrorCode::invalid_argument,
                              "expected rows in [0, 2) in a sparse gradient, got row " +
                                  std::to_string(wrong) + " (variable 'w')"));
  }
}

TEST_F(VariableStateTest, SlotsAreMadeByTheFirstUpdateAlone) {
  EXPECT_FALSE(reserve().slots.empty());
  EXPECT_TRUE(state_.slots().empty()) << "reserving changes nothing";
  apply(reserve());
  EXPECT_EQ(value(), 9);
  EXPECT_TRUE(reserve().slots.empty());
  apply(reserve());
  EXPECT_EQ(value(), 7);
}

TEST_F(VariableStateTest, UpdatesThatWereReservedTogetherShareTheSlotsOfTheFirst) {
  VariableState::Reserve first = reserve(), second = reserve();
  apply(std::move(first));
  apply(std::move(second));
  EXPECT_EQ(value(), 7);
  EXPECT_EQ(state_.slots().size(), 1U);
}

TEST_F(VariableStateTest, EachNameHasItsOwnSlots) {
  apply(reserve("a"), "a");
  apply(reserve("b"), "b");
  EXPECT_EQ(value(), 8);
  EXPECT_EQ(state_.slots().size(), 2U);
}

// Slots of another rule are other tensors, perhaps fewer.
TEST_F(VariableStateTest, TheSlotsOfAnOptimizerBelongToOneRule) {
  VariableState::Reserve first = reserve();
  VariableState::Reserve second = state_.reserve({other_, "a"}, of_two(1), {}, "w");
  apply(std::move(first));
  at::Tensor value = state_.value();
  state_.apply({other_, "a"}, std::move(second), value, {});
  EXPECT_EQ(this->value(), 8) << "reserved together: each its own";
  apply(reserve());
  VariableState fresh(of_two(0));
  at::Tensor next = fresh.value();
  fresh.apply({rule_, "a"}, fresh.reserve({rule_, "a"}, of_two(1), {}, "w"), next, {});
  EXPECT_THAT(
      [&] {
        fresh.reserve({other_, "a"}, of_two(1), {}, "w");
      },
      testing::throws_error(ErrorCode::already_exists,
                            "expected the rule 'sum' of optimizer 'a', which has slots of "
                            "it, got 'other' (variable 'w')"));
}

TEST_F(VariableStateTest, ANewValueMayBeAnotherTensor) {
  at::Tensor next = of_two(0);
  state_.apply({rule_, "a"}, reserve(), next, {});
  EXPECT_EQ(value(), 10) << "until it is exchanged";
  const at::Tensor old = state_.exchange(next);
  EXPECT_EQ(value(), 9);
  EXPECT_EQ(old[0].item<double>(), 10);
}

}  // namespace
}  // namespace cohort
