// SPDX-License-Identifier: Apache-2.0
// Values that a body reads on the host: the second pass, with other values, detects them.
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <limits>
#include <numeric>

#include "cohort/core/string_tensor.h"
#include "cohort/function/tracer/cases_for_tests.h"
#include "cohort/function/tracer/changes.h"

namespace cohort::function {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr const char* kNotTheSame = "is not the same for other values of its arguments";

class TraceHostReads : public TraceCase {
 protected:
  // Both inputs of the trace are `x`, as if the caller had no other values.
  std::string refusal_with(const at::Tensor& x, const std::function<at::Tensor(at::Tensor)>& body) {
    try {
      traced({x}, {x.clone()}, [&](const Tensors& in) { return Tensors{body(in[0])}; });
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  }
};

template <class T>
std::vector<T> values(const at::Tensor& x) {
  const at::Tensor flat = x.contiguous();
  return std::vector<T>(flat.data_ptr<T>(), flat.data_ptr<T>() + flat.numel());
}

TEST_F(TraceHostReads, NumbersOfAllKindsAreFound) {
  EXPECT_THAT(
      refusal_with(at::scalar_tensor(1.5), [](at::Tensor x) { return x * x.data_ptr<float>()[0]; }),
      HasSubstr(kNotTheSame));
  EXPECT_THAT(refusal_with(at::scalar_tensor(0.0, at::kDouble),
                           [](at::Tensor x) { return x + x.data_ptr<double>()[0]; }),
              HasSubstr(kNotTheSame));
  EXPECT_THAT(refusal_with(at::scalar_tensor(3, at::kLong),
                           [](at::Tensor x) { return x * x.data_ptr<std::int64_t>()[0]; }),
              HasSubstr(kNotTheSame));
  EXPECT_THAT(refusal_with(
                  at::scalar_tensor(true, at::kBool),
                  [](at::Tensor x) { return x.data_ptr<bool>()[0] ? x.logical_not() : x.clone(); }),
              HasSubstr(kNotTheSame));
}

TEST_F(TraceHostReads, EqualRowsAndOneRowAreFound) {
  const auto first = [](at::Tensor x) { return x * x.data_ptr<float>()[0]; };
  EXPECT_THAT(refusal_with(at::ones({4, 3}), first), HasSubstr(kNotTheSame));
  EXPECT_THAT(refusal_with(at::zeros({1, 3}), first), HasSubstr(kNotTheSame));
  EXPECT_THAT(refusal_with(normal({1, 3}, 5), first), HasSubstr(kNotTheSame));
}

TEST_F(TraceHostReads, ReadsThatDoNotDependOnTheOrderAreFound) {
  const at::Tensor integers = at::arange(7, at::kLong);
  for (const auto reduce : {0, 1, 2}) {
    EXPECT_THAT(refusal_with(integers,
                             [&](at::Tensor x) {
                               const auto all = values<std::int64_t>(x);
                               const std::int64_t number[] = {
                                   std::accumulate(all.begin(), all.end(), std::int64_t{0}),
                                   *std::max_element(all.begin(), all.end()),
                                   *std::min_element(all.begin(), all.end())};
                               return x * number[reduce];
                             }),
                HasSubstr(kNotTheSame))
        << reduce;
  }
  const auto count = [](at::Tensor x) {
    const auto all = values<bool>(x);
    return x.to(at::kLong) * std::count(all.begin(), all.end(), true);
  };
  EXPECT_THAT(refusal_with(at::arange(6) < 3, count), HasSubstr(kNotTheSame));
  EXPECT_THAT(refusal_with(at::ones({4}, at::kBool), count), HasSubstr(kNotTheSame));
  EXPECT_THAT(refusal_with(normal({1, 5}, 1),
                           [](at::Tensor x) {
                             const auto all = values<float>(x);
                             return x.select(
                                 1, std::max_element(all.begin(), all.end()) - all.begin());
                           }),
              HasSubstr(kNotTheSame));
}

TEST_F(TraceHostReads, VariablesAreFoundAlsoWhereNoOpUsesThem) {
  at::Tensor w = parameter("w", {3}), zeros = variable("zeros", at::zeros({2, 2}));
  at::Tensor count = variable("count", at::scalar_tensor(7, at::kLong));
  const at::Tensor before = w.detach().clone();
  EXPECT_THAT(refusal([&](at::Tensor x) { return x * w * w.data_ptr<float>()[1]; }),
              HasSubstr(kNotTheSame));
  EXPECT_THAT(refusal([&](at::Tensor x) { return x * w.data_ptr<float>()[0]; }),
              HasSubstr(kNotTheSame));
  EXPECT_THAT(refusal([&](at::Tensor x) { return x + zeros.data_ptr<float>()[3]; }),
              HasSubstr(kNotTheSame));
  EXPECT_THAT(refusal([&](at::Tensor x) { return x * count.data_ptr<std::int64_t>()[0]; }),
              HasSubstr(kNotTheSame));
  EXPECT_TRUE(bits_equal(w.detach(), before));
  EXPECT_TRUE(bits_equal(zeros, at::zeros({2, 2})));
  EXPECT_TRUE(bits_equal(count, at::scalar_tensor(7, at::kLong)));
}

// Some parts of a large one change, and come back.
TEST_F(TraceHostReads, LargeVariablesAreFound) {
  const at::Tensor table = variable("table", at::zeros({20 << 20}));
  options_.variables = {table};
  EXPECT_THAT(refusal_with(at::scalar_tensor(1.5),
                           [&](at::Tensor x) {
                             double sum = 0;
                             const auto* const values = table.data_ptr<float>();
                             for (std::int64_t i = 0; i < table.numel(); ++i) sum += values[i];
                             return x * sum;
                           }),
              HasSubstr(kNotTheSame));
  EXPECT_EQ(table.count_nonzero().item<std::int64_t>(), 0);
}

TEST_F(TraceHostReads, VariablesGetTheirValuesBackAfterAnException) {
  at::Tensor w = parameter("w", {3}, false), mask = variable("mask", at::arange(5) < 2);
  const at::Tensor before = w.detach().clone();
  const Tensors inputs{normal({3}, 0)};
  EXPECT_THROW(traced(inputs, inputs,
                      [&, calls = 0](const Tensors& in) mutable {
                        w.data().mul_(in[0]);
                        if (++calls > 1) throw std::runtime_error("user error");
                        return Tensors{w * mask.sum()};
                      }),
               Error);
  EXPECT_TRUE(bits_equal(w.detach(), before));
  EXPECT_TRUE(bits_equal(mask, at::arange(5) < 2));
}

TEST_F(TraceHostReads, ElementsAreFound) {
  options_.draw = [](std::int64_t, int, int) { return Tensors{at::full({1}, 4, at::kLong)}; };
  EXPECT_THAT(refusal([](at::Tensor x) {
                const at::Tensor labels = Trace::current()->iterator_next(0)[0];
                return x * labels.data_ptr<std::int64_t>()[0] + labels;
              }),
              HasSubstr(kNotTheSame));
}

// Each of these throws for some of the other values, but is correct.
TEST_F(TraceHostReads, BodiesThatThrowForOtherValuesAreTraced) {
  const at::Tensor table = normal({1, 3}, 1);
  EXPECT_EQ(refusal_with(at::zeros({2}, at::kLong),
                         [&](at::Tensor ids) { return table.index_select(0, ids); }),
            "no error");
  int calls = 0;
  const auto sorted_only = [&](at::Tensor offsets) {
    ++calls;
    const auto all = values<std::int64_t>(offsets);
    if (!std::is_sorted(all.begin(), all.end())) throw std::runtime_error("not sorted");
    return offsets * 2;
  };
  const at::Tensor offsets = at::tensor({0, 2, 3, 7}, at::kLong);
  EXPECT_EQ(refusal_with(offsets, sorted_only), "no error");
  EXPECT_EQ(calls, 3);
  const auto exact = [&](at::Tensor x) {
    if (!bits_equal(x, offsets)) throw std::runtime_error("unexpected values");
    return x * 2;
  };
  EXPECT_EQ(refusal_with(offsets, exact), "no error");
}

// A retry would hide the difference that the first try has shown.
TEST_F(TraceHostReads, ADifferenceBeforeTheThrowIsReported) {
  const at::Tensor data = normal({3, 4}, 1);
  int calls = 0;
  const auto text = refusal_with(at::full({2}, -1, at::kLong), [&](at::Tensor x) {
    ++calls;
    const std::int64_t beyond = x.data_ptr<std::int64_t>()[0] + 1;
    return data.narrow(0, 0, 3 + beyond) + x[0];
  });
  EXPECT_THAT(text, AllOf(HasSubstr(kNotTheSame), HasSubstr("aten::narrow(%0, 0, 0, 4)")));
  EXPECT_EQ(calls, 2);
}

TEST_F(TraceHostReads, AnErrorOfAllOtherValuesIsTheFirstOne) {
  int calls = 0;
  const auto text = refusal_with(at::ones({2}), [&](at::Tensor x) {
    if (++calls > 1) throw std::runtime_error("call " + std::to_string(calls));
    return x * 2;
  });
  EXPECT_THAT(text, AllOf(HasSubstr("call 2"), HasSubstr("other values")));
}

// --- The values themselves -----------------------------------------------------------------------

at::Tensor changed_alone(const at::Tensor& x, Change how) { return changed(x, x.clone(), how); }

TEST(TraceChanges, RealNumbers) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  const at::Tensor x = at::tensor({1.0F, -kInf, 0.0F, 4.0F});
  EXPECT_TRUE(bits_equal(changed_alone(x, Change::within),
                         at::tensor({0.984375F, -kInf, 0.0625F, 3.9375F})));
  EXPECT_TRUE(bits_equal(changed_alone(x, Change::beside),
                         at::tensor({3.9375F, 0.0625F, -kInf, 0.984375F})));
  for (const auto dtype : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16}) {
    const at::Tensor zeros = at::zeros({2}, dtype);
    EXPECT_TRUE(bits_equal(changed_alone(zeros, Change::within), at::full({2}, 1.0 / 64, dtype)));
  }
  const at::Tensor z = at::ones({2}, at::kComplexFloat);
  EXPECT_FALSE(changed_alone(z, Change::within).eq(z).any().item<bool>());
}

TEST(TraceChanges, IntegersStayInsideTheirRangeAndDiffer) {
  for (const std::int64_t high : {1, 2, 3, 9}) {
    const at::Tensor x = at::arange(32, at::kLong).remainder(high + 1);
    const at::Tensor y = changed_alone(x, Change::beside);
    EXPECT_GE(y.min().item<std::int64_t>(), 0);
    EXPECT_LE(y.max().item<std::int64_t>(), high);
    EXPECT_LE(x.eq(y).sum().item<std::int64_t>(), 1);
    EXPECT_NE(x.sum().item<std::int64_t>(), y.sum().item<std::int64_t>());
  }
  const at::Tensor ends = at::tensor(
      {std::numeric_limits<std::int64_t>::min(), std::numeric_limits<std::int64_t>::max()});
  EXPECT_FALSE(bits_equal(changed_alone(ends, Change::beside), ends));
  const at::Tensor sorted = at::tensor({9, 4, 4, 1});
  const auto within = values<std::int64_t>(changed_alone(sorted.to(at::kLong), Change::within));
  EXPECT_TRUE(std::is_sorted(within.rbegin(), within.rend()));
  EXPECT_EQ(within.front(), 9);
  EXPECT_EQ(within.back(), 1);
}

TEST(TraceChanges, TogglingTwiceIsNoChange) {
  for (const Change how : kChanges) {
    for (const at::Tensor& x :
         {normal({64}, 1), normal({64}, 2).to(at::kDouble), normal({64}, 3).to(at::kHalf),
          normal({64}, 4).to(at::kBFloat16), at::zeros({3}), at::full({3}, 1.0 / 64),
          at::full({3}, 1.015625 / 64), at::arange(9, at::kLong), at::arange(9, at::kByte),
          at::arange(9) < 4, at::ones({2}, at::kComplexDouble)}) {
      const at::Tensor y = x.clone();
      toggle(y, how);
      const bool is_real = x.is_floating_point() || x.is_complex();
      const bool may_stay = how == Change::rolled || (how == Change::reals && !is_real) ||
                            x.flatten()[0].item().toComplexDouble() == 1.015625 / 64;
      EXPECT_EQ(bits_equal(x, y) == true, may_stay) << x << static_cast<int>(how);
      toggle(y, how);
      EXPECT_TRUE(bits_equal(x, y)) << x;
    }
  }
}

TEST(TraceChanges, StringsAreThoseOfTheCaller) {
  const StringTensor a("a"), b("b");
  EXPECT_EQ(StringTensor::of(changed(a, b, Change::beside)).value(), "b");
}

}  // namespace
}  // namespace cohort::function
