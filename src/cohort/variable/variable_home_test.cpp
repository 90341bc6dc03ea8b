// SPDX-License-Identifier: Apache-2.0
#include "cohort/variable/variable_home.h"

#include <ATen/core/TensorBody.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include <array>
#include <string>

#include "cohort/testing/slotless_rule.h"

namespace cohort {
namespace {

class NoRule final : public testing::SlotlessRule {
 public:
  std::string_view name() const override { return "none"; }
  void update(at::Tensor&, const at::Tensor&, std::span<at::Tensor>, const at::Tensor&,
              std::span<const double>) const override {}
};

// Keeps the gradients that it gets, and counts the uses of the variables' tensors.
class CountingHome final : public VariableHome {
 public:
  void check_use(std::string_view, std::string_view) const override {}
  std::vector<at::Tensor> read(std::span<const Variable>) const override { return {}; }
  void write(std::span<const VariableWrite>) override {}
  void export_state(std::span<const Variable>, const StateWalk&, const TakeRecord&) const override {
  }
  void import_state(const Variable&, const VariableRecord&) override {}
  std::vector<at::Tensor> memory_of(const Variable& variable) const override {
    return {variable.tensor(), other};
  }
  void apply(const SlotKey&, std::span<const Update> updates, std::span<const double>) override {
    for (const Update& each : updates) applied.push_back(each.gradient);
  }

  at::Tensor other = at::ones({2});  // that of another replica
  std::vector<at::Tensor> applied;
  std::size_t tensor_uses = 0;
};

class CountedVariable final : public VariableImpl {
 public:
  explicit CountedVariable(std::shared_ptr<CountingHome> home) : home_(std::move(home)) {}
  const std::string& name() const override { return name_; }
  const TensorSpec& spec() const override { return spec_; }
  bool is_trainable() const override { return true; }
  const at::Tensor& tensor() const override {
    ++home_->tensor_uses;
    return value_;
  }
  bool is_tensor_current() const override { return true; }
  void check_tensor_is_current(std::string_view) const override {}
  at::Tensor copy() const override { return value_.clone(); }
  std::shared_ptr<VariableHome> home() const override { return home_; }

 private:
  const std::shared_ptr<CountingHome> home_;
  const std::string name_ = "v";
  const at::Tensor value_ = at::ones({2});
  const TensorSpec spec_ = TensorSpec::of(value_);
};

class VariableHomeTest : public ::testing::Test {
 protected:
  Variable make() const { return Variable(std::make_shared<CountedVariable>(home_)); }
  void apply(const std::vector<Update>& updates) {
    const std::array hyper{at::full({}, 0.5, at::kDouble)};
    apply_updates({rule_, "none"}, updates, hyper);
  }
  // How often apply_updates() uses the tensors of `count` variables whose gradients are parts of
  // one tensor, as those of a sum are.
  std::size_t uses_for(std::int64_t count) {
    const at::Tensor gradients = at::ones({count, 2});
    std::vector<Update> updates;
    for (std::int64_t i = 0; i < count; ++i) updates.push_back({make(), gradients[i]});
    home_->tensor_uses = 0;
    apply(updates);
    return home_->tensor_uses;
  }

  const NoRule rule_{};
  const std::shared_ptr<CountingHome> home_ = std::make_shared<CountingHome>();
};

// Regression: each gradient was compared with every variable.
TEST_F(VariableHomeTest, AnUpdateUsesEachVariableAFixedNumberOfTimes) {
  const std::size_t few = uses_for(10);
  EXPECT_EQ(uses_for(100), 10 * few);
}

TEST_F(VariableHomeTest, AGradientThatIsAViewOfAnyReplicasValueIsCopied) {
  const Variable first = make(), second = make();
  const at::Tensor own = at::ones({2});
  apply({{first, second.tensor().detach()}, {second, home_->other.detach()}, {first, own}});
  ASSERT_EQ(home_->applied.size(), 3U);
  EXPECT_FALSE(home_->applied[0].is_alias_of(second.tensor()));
  EXPECT_FALSE(home_->applied[1].is_alias_of(home_->other));
  EXPECT_TRUE(at::equal(home_->applied[0], second.tensor()));
  EXPECT_TRUE(home_->applied[2].is_alias_of(own));
}

}  // namespace
}  // namespace cohort
