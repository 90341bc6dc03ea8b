// SPDX-License-Identifier: Apache-2.0
#include "cohort/variable/row_gradient.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <random>
#include <vector>

#include "cohort/testing/throws_error.h"
#include "cohort/variable/rows.h"

namespace cohort::variable {
namespace {

at::Tensor ids_of(const std::vector<std::int64_t>& ids) { return at::tensor(ids, at::kLong); }

class RowGradients : public ::testing::Test {
 protected:
  // The gradient of a table of 9 rows for these ids.
  static at::Tensor gradient(const at::Tensor& ids, const at::Tensor& values, bool is_sparse) {
    at::Tensor table = at::zeros({9, 3}).requires_grad_();
    (at::embedding(table, ids, -1, false, is_sparse) * values).sum().backward();
    return table.grad();
  }
  at::Tensor ids(std::int64_t count) {
    return at::randint(0, 9, {count}, generator_, at::TensorOptions(at::kLong));
  }
  at::Tensor values(std::int64_t count) {
    // Sums of numbers of other sizes depend on their order.
    const at::Tensor sizes = at::randint(-4, 5, {count, 1}, generator_);
    return at::randn({count, 3}, generator_) * at::full({}, 10.0F).pow(sizes);
  }

  at::Generator generator_ = at::detail::createCPUGenerator(3);
};

TEST_F(RowGradients, AreSparseInTheirFirstAxisAlone) {
  const at::Tensor sparse = gradient(ids_of({1}), at::ones({1, 3}), true);
  EXPECT_TRUE(is_row_gradient(sparse));
  EXPECT_FALSE(is_row_gradient(at::Tensor()));
  EXPECT_FALSE(is_row_gradient(at::ones({2, 3})));
  EXPECT_FALSE(is_row_gradient(at::ones({2, 3}).to_sparse()));
  EXPECT_TRUE(is_row_gradient(at::ones({2}).to_sparse()));
}

TEST_F(RowGradients, HaveTheBitsOfTheDenseGradient) {
  for (const std::int64_t count : {1, 2, 7, 100}) {
    const at::Tensor rows = ids(count), given = values(count);
    const at::Tensor sparse = gradient(rows, given, true), dense = gradient(rows, given, false);
    const at::Tensor sums = sum_rows(sparse);
    EXPECT_TRUE(at::equal(dense_of(sparse), dense)) << count;
    EXPECT_TRUE(at::equal(dense_of(sums), dense)) << count;
    EXPECT_TRUE(at::equal(sums.to_dense(), dense)) << count;
    const at::Tensor kept = rows_of(sums).ids.squeeze(0);
    EXPECT_TRUE(kept.slice(0, 1).gt(kept.slice(0, 0, -1)).all().item<bool>()) << "ascending";
  }
}

TEST_F(RowGradients, AreAddedInTheTreeOfDenseOnes) {
  std::vector<at::Tensor> rows, dense;
  for (int replica = 0; replica < 5; ++replica) {
    const at::Tensor own = ids(4), given = values(4);
    rows.push_back(sum_rows(gradient(own, given, true)));
    dense.push_back(gradient(own, given, false));
  }
  const at::Tensor expected = ((dense[0] + dense[1]) + (dense[2] + dense[3])) + dense[4];
  EXPECT_TRUE(at::equal(dense_of(add_all_rows(rows)), expected));
  rows[3] = at::Tensor();
  EXPECT_TRUE(
      at::equal(dense_of(add_all_rows(rows)), ((dense[0] + dense[1]) + dense[2]) + dense[4]));
}

// Many ids are sorted in another way than few.
TEST_F(RowGradients, OfAnyNumberAreSortedAndSummedInTheOrderInWhichTheyCome) {
  for (const std::size_t count : {1, 127, 128, 129, 3000}) {
    std::mt19937_64 random(count);
    std::vector<std::int64_t> ids;
    std::vector<float> values;
    for (std::size_t i = 0; i < count; ++i) {
      // Keys of all sizes and both signs, of which many come several times.
      const auto key = static_cast<std::int64_t>(random() >> (random() % 64));
      ids.push_back(i % 3 != 0 && i > 2 ? ids[random() % i] : (i % 2 == 0 ? key : ~key));
      values.push_back(static_cast<float>(random() % 1000) * 1.1F);
    }
    std::map<std::int64_t, float> expected;
    for (std::size_t i = 0; i < count; ++i) expected[ids[i]] += values[i];
    const at::Tensor all = tensor_of(ids);
    const GradientRows sums = sum_rows(GradientRows{
        all, at::from_blob(values.data(), {static_cast<std::int64_t>(count), 1}, at::kFloat)});
    std::map<std::int64_t, float> got;
    const auto rows = numbers_of(sums.ids);
    for (std::size_t i = 0; i < rows.size(); ++i) got[rows[i]] = sums.values.data_ptr<float>()[i];
    EXPECT_TRUE(std::ranges::is_sorted(rows));
    EXPECT_EQ(rows.size(), expected.size());
    EXPECT_EQ(got, expected);
  }
}

TEST_F(RowGradients, MayHaveNoRowsAndExpandedValues) {
  const at::Tensor none = row_gradient(ids_of({}), at::zeros({0, 3}), {9, 3});
  EXPECT_TRUE(at::equal(dense_of(none), at::zeros({9, 3})));
  const at::Tensor one = row_gradient(ids_of({4}), at::ones({1, 1}).expand({1, 3}), {9, 3});
  EXPECT_EQ(dense_of(add_rows(sum_rows(none), sum_rows(one))).sum().item<float>(), 3);
}

TEST_F(RowGradients, OfAnyOrderInMemoryBecomeRowMajor) {
  const at::Tensor values = at::tensor({1.F, 3.F, 2.F, 4.F}).view({2, 2}).t();
  const at::Tensor given = summed_row_gradient(ids_of({0, 2}), values, {4, 2});
  const GradientRows rows = rows_of(sum_rows(given));
  EXPECT_TRUE(rows.values.is_contiguous());
  EXPECT_TRUE(at::equal(rows.values, values));
}

TEST_F(RowGradients, OtherRowsThanThoseOfTheVariableAreRefused) {
  for (const std::int64_t id : {-1, 9}) {
    EXPECT_THAT(
        [&] {
          sum_rows(row_gradient(ids_of({2, id}), at::ones({2, 3}), {9, 3}));
        },
        testing::throws_error(ErrorCode::invalid_argument, "expected rows in [0, 9)"));
  }
}

}  // namespace
}  // namespace cohort::variable
