// SPDX-License-Identifier: Apache-2.0
#include "cohort/variable/state_walk.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <array>
#include <vector>

#include "cohort/testing/throws_error.h"
#include "cohort/variable/hyperparameter.h"
#include "cohort/variable/variable_home.h"

namespace cohort {
namespace {

using testing::throws_error;

// Keeps the sum of all gradients, and counts them.
class SumAndCountRule final : public variable::UpdateRule {
 public:
  std::string_view name() const override { return "sum_and_count"; }
  std::span<const std::string_view> hyperparameter_names() const override { return {}; }
  std::span<const std::string_view> slot_names() const override {
    static constexpr std::array<std::string_view, 2> kNames{"sum", "count"};
    return kNames;
  }
  std::vector<at::Tensor> create_slots(const at::Tensor& variable,
                                       std::span<const double>) const override {
    return {at::zeros(variable.sizes()), at::zeros({})};
  }
  void update(at::Tensor& new_value, const at::Tensor& value, std::span<at::Tensor> slots,
              const at::Tensor& gradient, std::span<const double>) const override {
    slots[0].add_(gradient);
    slots[1].add_(1);
    new_value.copy_(value - slots[0]);
  }
};

class StateWalks : public ::testing::Test {
 protected:
  static Variable make(const std::string& name) {
    return local_variable(name, at::zeros({3, 2}), /*is_trainable=*/false);
  }
  void step(const Variable& variable) const {
    const Update update{variable, at::ones({3, 2})};
    apply_updates({rule_, "mine"}, {&update, 1}, {});
  }
  const SumAndCountRule rule_{};
};

TEST_F(StateWalks, ASecondVariableGoesOnAsTheFirst) {
  const Variable first = make("first"), second = make("second");
  step(first);
  step(first);
  const VariableRecord record = whole_state({&first, 1}, {})[0];
  step(first);
  EXPECT_EQ(record.name, "first");
  ASSERT_EQ(record.values.at(0).slots.size(), 1U);
  EXPECT_EQ(record.values[0].slots[0].optimizer, "mine");
  EXPECT_EQ(record.values[0].slots[0].tensors[1].item<float>(), 2) << "the later step is not in it";
  import_state(second, record);
  step(second);
  EXPECT_TRUE(at::equal(second.read(), first.read()));
}

TEST_F(StateWalks, ARecordWithoutSlotsLeavesNone) {
  const Variable variable = make("v");
  const VariableRecord fresh = whole_state({&variable, 1}, {})[0];
  step(variable);
  import_state(variable, fresh);
  EXPECT_TRUE(whole_state({&variable, 1}, {})[0].values[0].slots.empty());
  step(variable);
  EXPECT_EQ(variable.read().sum().item<float>(), -6) << "as a first step";
}

TEST_F(StateWalks, WithoutSlotsHaveValuesAlone) {
  const Variable variable = make("v");
  step(variable);
  EXPECT_TRUE(whole_state({&variable, 1}, {.has_slots = false})[0].values[0].slots.empty());
}

TEST_F(StateWalks, RecordsThatDoNotFitAreRefused) {
  const Variable variable = make("v");
  VariableRecord record = whole_state({&variable, 1}, {})[0];
  record.values.push_back(record.values[0]);
  EXPECT_THAT([&] { import_state(variable, record); },
              throws_error(ErrorCode::invalid_argument, "expected one value for variable 'v'"));
  record.values.pop_back();
  record.values[0].tensor = at::ones({2, 2});
  EXPECT_THAT([&] { import_state(variable, record); },
              throws_error(ErrorCode::invalid_argument, "for variable 'v'"));
  record.values.clear();
  EXPECT_THAT([&] { import_state(variable, record); },
              throws_error(ErrorCode::invalid_argument, "got none"));
  EXPECT_TRUE(at::equal(variable.read(), at::zeros({3, 2})));
}

}  // namespace
}  // namespace cohort
