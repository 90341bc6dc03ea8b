// SPDX-License-Identifier: Apache-2.0
// The contract of every row of the table of rules, in float32 and float64.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/randperm.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>

#include <limits>
#include <tuple>

#include "cohort/optimizer/optimizer.h"
#include "cohort/optimizer/rules/kernel.h"
#include "cohort/testing/throws_error.h"

namespace cohort {
namespace {

constexpr int kGradients = 3;
constexpr double kHyper = 0.25;  // in range for every hyperparameter of every rule

// A variable and its slots.
struct Updated {
  at::Tensor value;
  std::vector<at::Tensor> slots;
};

class EveryUpdateRule
    : public ::testing::TestWithParam<std::tuple<std::string_view, at::ScalarType>> {
 protected:
  at::Tensor random(std::vector<std::int64_t> sizes) {
    return at::randn(sizes, generator_, at::TensorOptions(std::get<1>(GetParam())));
  }
  std::vector<at::Tensor> random_gradients(const std::vector<std::int64_t>& sizes) {
    std::vector<at::Tensor> gradients;
    for (int i = 0; i < kGradients; ++i) gradients.push_back(random(sizes));
    return gradients;
  }
  static std::vector<at::Tensor> clones_of(const std::vector<at::Tensor>& tensors) {
    std::vector<at::Tensor> clones;
    for (const at::Tensor& tensor : tensors) clones.push_back(tensor.clone());
    return clones;
  }
  std::vector<at::Tensor> slots_for(const at::Tensor& value) const {
    return rule_.create_slots(value, hyper_);
  }
  Updated updated_in_place(const at::Tensor& start,
                           const std::vector<at::Tensor>& gradients) const {
    Updated it{start.clone(), slots_for(start)};
    for (const at::Tensor& gradient : gradients)
      rule_.update(it.value, it.value, it.slots, gradient, hyper_);
    return it;
  }
  Updated updated_into_other_buffers(const at::Tensor& start,
                                     const std::vector<at::Tensor>& gradients) const {
    Updated it{start.clone(), slots_for(start)};
    for (const at::Tensor& gradient : gradients) {
      at::Tensor next =
          at::full(start.sizes(), std::numeric_limits<double>::quiet_NaN(), start.options());
      rule_.update(next, it.value, it.slots, gradient, hyper_);
      it.value = next;
    }
    return it;
  }
  static void expect_equal(const Updated& a, const Updated& b) {
    EXPECT_TRUE(at::equal(a.value, b.value));
    ASSERT_EQ(a.slots.size(), b.slots.size());
    for (std::size_t i = 0; i < a.slots.size(); ++i)
      EXPECT_TRUE(at::equal(a.slots[i], b.slots[i])) << "slot " << i;
  }

  at::Generator generator_ = at::detail::createCPUGenerator(7);
  const variable::UpdateRule& rule_ = optimizer::update_rule_of(std::get<0>(GetParam()));
  const std::vector<double> hyper_ =
      std::vector<double>(rule_.hyperparameter_names().size(), kHyper);
};

// A server may get hyperparameters from any peer.
TEST_P(EveryUpdateRule, ChecksTheRangeOfEachHyperparameter) {
  const at::Tensor value = random({2});
  variable::check_update(rule_, value, value, hyper_, "w");
  for (std::size_t i = 0; i < hyper_.size(); ++i) {
    std::vector<double> wrong = hyper_;
    wrong[i] = -0.5;
    EXPECT_THAT([&] { variable::check_update(rule_, value, value, wrong, "w"); },
                testing::throws_error(ErrorCode::invalid_argument,
                                      std::string(rule_.hyperparameter_names()[i])));
  }
}

TEST_P(EveryUpdateRule, CreatesTheSlotsItNames) {
  const at::Tensor value = random({5, 3});
  const auto slots = slots_for(value);
  ASSERT_EQ(slots.size(), rule_.slot_names().size());
  for (const at::Tensor& slot : slots) {
    EXPECT_TRUE(slot.dim() == 0 ||
                (slot.sizes() == value.sizes() && slot.dtype() == value.dtype()));
    EXPECT_FALSE(slot.is_alias_of(value));
    EXPECT_TRUE(slot.is_contiguous());
  }
}

TEST_P(EveryUpdateRule, CreatesSlotsWithoutHistory) {
  const auto slots = slots_for(random({5, 3}).requires_grad_());
  for (const at::Tensor& slot : slots) EXPECT_FALSE(slot.requires_grad());
}

TEST_P(EveryUpdateRule, InPlaceEqualsIntoAnotherBuffer) {
  const at::Tensor start = random({7, 5});
  const auto gradients = random_gradients({7, 5});
  expect_equal(updated_in_place(start, gradients), updated_into_other_buffers(start, gradients));
}

TEST_P(EveryUpdateRule, AnotherBufferLeavesTheOldValue) {
  const at::Tensor value = random({9});
  const at::Tensor before = value.clone();
  auto slots = slots_for(value);
  at::Tensor next = at::empty_like(value);
  rule_.update(next, value, slots, random({9}), hyper_);
  EXPECT_TRUE(at::equal(value, before));
  EXPECT_FALSE(at::equal(next, before));
}

TEST_P(EveryUpdateRule, LeavesRowsOfZerosIfItSaysSo) {
  for (const double decay : {0.0, kHyper}) {
    std::vector<double> hyper = hyper_;
    for (std::size_t i = 0; i < hyper.size(); ++i) {
      const std::string_view name = rule_.hyperparameter_names()[i];
      const bool is_pause = name == "momentum" && rule_.name() != "nesterov";
      if (name == "weight_decay" || is_pause) hyper[i] = decay;
    }
    const at::Tensor start = random({5, 3});
    Updated it{start.clone(), rule_.create_slots(start, hyper)};
    rule_.update(it.value, it.value, it.slots, random({5, 3}), hyper);
    const Updated before{it.value.clone(), clones_of(it.slots)};
    rule_.update(it.value, it.value, it.slots, at::zeros({5, 3}, start.options()), hyper);
    bool is_same = at::equal(it.value, before.value);
    for (std::size_t i = 0; i < it.slots.size(); ++i)
      is_same = is_same && (it.slots[i].dim() == 0 || at::equal(it.slots[i], before.slots[i]));
    EXPECT_EQ(rule_.leaves_rows_of_zeros(hyper), is_same) << "decay " << decay;
  }
}

TEST_P(EveryUpdateRule, HalvesOfTheRowsEqualTheWhole) {
  const at::Tensor start = random({6, 5});
  const auto gradients = random_gradients({6, 5});
  const Updated whole = updated_in_place(start, gradients);
  std::vector<at::Tensor> halves;
  for (const int first : {0, 3}) {
    std::vector<at::Tensor> rows;
    for (const at::Tensor& gradient : gradients)
      rows.push_back(gradient.slice(0, first, first + 3));
    halves.push_back(updated_in_place(start.slice(0, first, first + 3), rows).value);
  }
  EXPECT_TRUE(at::equal(at::cat(halves), whole.value));
}

// More rows than one thread updates, longer ones than are loaded early, and none.
TEST_P(EveryUpdateRule, RowsInPlaceEqualRowsThatAreCopied) {
  struct Case {
    std::int64_t rows, width, used;
  };
  for (const Case& sizes :
       {Case{7, 3, 4}, Case{5, 100, 5}, Case{90'000, 16, 70'000}, Case{3, 2, 0}}) {
    const at::Tensor start = random({sizes.rows, sizes.width});
    const at::Tensor ids =
        at::randperm(sizes.rows, generator_, at::TensorOptions(at::kLong)).narrow(0, 0, sizes.used);
    Updated in_place{start.clone(), slots_for(start)}, copied{start.clone(), slots_for(start)};
    for (int i = 0; i < kGradients; ++i) {
      const at::Tensor gradient = random({sizes.used, sizes.width});
      rule_.update_rows(in_place.value, in_place.slots, ids, gradient, hyper_);
      rule_.UpdateRule::update_rows(copied.value, copied.slots, ids, gradient, hyper_);
    }
    EXPECT_EQ(at::equal(in_place.value, start), sizes.used == 0);
    expect_equal(in_place, copied);
  }
}

// Large enough to be split over threads, and not a multiple of a vector.
TEST_P(EveryUpdateRule, ALargeVariableIsUpdatedAsItsParts) {
  const std::int64_t count = 2 * optimizer::kParallelElements + 3;
  const at::Tensor start = random({count});
  const std::vector<at::Tensor> gradients{random({count})};
  const at::Tensor whole = updated_in_place(start, gradients).value;
  for (const std::int64_t first : {std::int64_t{0}, optimizer::kParallelElements, count - 9}) {
    const at::Tensor part = updated_in_place(start.slice(0, first, first + 9),
                                             {gradients[0].slice(0, first, first + 9)})
                                .value;
    EXPECT_TRUE(at::equal(part, whole.slice(0, first, first + 9))) << "from " << first;
  }
}

// As on a GPU.
TEST_P(EveryUpdateRule, OperatorsComputeTheSame) {
  const auto& rule = dynamic_cast<const optimizer::ElementRule&>(rule_);
  const at::Tensor start = random({4, 3});
  const std::vector<at::Tensor> gradients = random_gradients({4, 3});
  const Updated expected = updated_in_place(start, gradients);
  Updated it{start.clone(), slots_for(start)};
  std::size_t used = 0;
  for (const bool is_in_place : {false, true, false}) {
    at::Tensor next = is_in_place ? it.value : at::empty_like(start);
    rule.update_anywhere(next, it.value, it.slots, gradients.at(used++), hyper_);
    it.value = next;
  }
  EXPECT_TRUE(at::allclose(it.value, expected.value, 1e-5, 1e-6));
  for (std::size_t i = 0; i < expected.slots.size(); ++i)
    EXPECT_TRUE(at::allclose(it.slots[i], expected.slots[i], 1e-5, 1e-6)) << "slot " << i;
}

TEST_P(EveryUpdateRule, AZeroGradientNeverGivesNaN) {
  const at::Tensor start = random({4});
  const std::vector<at::Tensor> zeros(kGradients, at::zeros_like(start));
  EXPECT_TRUE(updated_in_place(start, zeros).value.isfinite().all().item<bool>());
}

// Regression: the momentum of a weight without gradients decayed into numbers that are ten times as
// slow to compute with, and stayed there. Also on the other threads of a large variable.
TEST_P(EveryUpdateRule, NumbersTooSmallForANormalExponentAreZero) {
  const double smallest = std::get<1>(GetParam()) == at::kFloat
                              ? std::numeric_limits<float>::min()
                              : std::numeric_limits<double>::min();
  for (const std::int64_t count : {std::int64_t{5}, 2 * optimizer::kParallelElements + 3}) {
    Updated it{random({count}), {}};
    it.slots = slots_for(it.value);
    for (const at::Tensor& slot : it.slots) {
      if (slot.dim() > 0) slot.fill_(smallest);
    }
    rule_.update(it.value, it.value, it.slots, at::zeros_like(it.value), hyper_);
    for (const at::Tensor& slot : it.slots)
      EXPECT_TRUE(slot.eq(0).logical_or(slot.abs().ge(smallest)).all().item<bool>());
  }
  const volatile double number = std::numeric_limits<double>::min();
  EXPECT_GT(number / 2, 0.0) << "the caller's own numbers are as before";
}

TEST_P(EveryUpdateRule, ScalarsAndEmptyVariablesAreUpdated) {
  const at::Tensor scalar = random({});
  EXPECT_FALSE(at::equal(updated_in_place(scalar, random_gradients({})).value, scalar));
  EXPECT_EQ(updated_in_place(random({0, 3}), random_gradients({0, 3})).value.numel(), 0);
}

TEST_P(EveryUpdateRule, OfAnotherDtypeIsUnimplemented) {
  at::Tensor value = random({4}).to(at::kHalf);
  EXPECT_THAT(
      [&] {
        auto slots = slots_for(value);
        rule_.update(value, value, slots, value, hyper_);
      },
      testing::throws_error(ErrorCode::unimplemented,
                            "got float16 (rule '" + std::string(rule_.name()) + "')"));
}

INSTANTIATE_TEST_SUITE_P(Rules, EveryUpdateRule,
                         ::testing::Combine(::testing::ValuesIn(optimizer::update_rule_names()),
                                            ::testing::Values(at::kFloat, at::kDouble)),
                         [](const auto& test) {
                           return std::string(std::get<0>(test.param)) +
                                  (std::get<1>(test.param) == at::kFloat ? "Float32" : "Float64");
                         });

}  // namespace
}  // namespace cohort
