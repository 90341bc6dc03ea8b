// SPDX-License-Identifier: Apache-2.0
#include "cohort/parameter_server/slices.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cohort/core/error.h"
#include "cohort/testing/throws_error.h"

namespace cohort::parameter_server {
namespace {

using internal::Effect;
using Kind = Effect::Kind;

at::Tensor numbers(const std::vector<std::int64_t>& all) { return at::tensor(all, at::kLong); }
at::Tensor matrix(std::int64_t rows) { return at::arange(2 * rows).to(at::kFloat).view({rows, 2}); }

// Rows 0 to 2, 3 and 4, 5 to 9.
const std::vector<rpc::Slice> kSlices = {
    {.variable = 7, .server = 0, .first_row = 0, .rows = 3, .shard = 8},
    {.variable = 7, .server = 1, .first_row = 3, .rows = 2, .shard = 9},
    {.variable = 7, .server = 0, .first_row = 5, .rows = 5, .shard = 10}};
const std::vector<rpc::Slice> kWhole = {{.variable = 7, .server = 1}};

TEST(Slices, RowsAreDividedAndJoined) {
  const at::Tensor ids = numbers({9, 0, 5, 2, 9});
  const auto split = split_rows(kSlices, ids);
  ASSERT_EQ(split.size(), 2U);
  EXPECT_EQ(split[0].part, 0U);
  EXPECT_TRUE(at::equal(split[0].ids, numbers({0, 2})));
  EXPECT_EQ(split[1].part, 2U);
  EXPECT_TRUE(at::equal(split[1].ids, numbers({4, 0, 4})));
  const at::Tensor value = matrix(10);
  std::vector<at::Tensor> rows;
  for (const RowsOfPart& each : split) {
    const rpc::Slice& slice = kSlices[each.part];
    rows.push_back(value.narrow(0, slice.first_row, slice.rows).index_select(0, each.ids));
  }
  EXPECT_TRUE(at::equal(joined_rows(split, rows), value.index_select(0, ids)));
}

// Regression: there was nothing to join, and the worker crashed.
TEST(Slices, NoRowsAreReadFromTheFirstSlice) {
  for (const std::vector<rpc::Slice>& slices : {kSlices, kWhole}) {
    const auto split = split_rows(slices, numbers({}));
    ASSERT_EQ(split.size(), 1U);
    EXPECT_EQ(split[0].part, 0U);
    EXPECT_EQ(split[0].ids.numel(), 0);
    const std::vector<at::Tensor> rows = {matrix(0)};
    EXPECT_EQ(joined_rows(split, rows).sizes(), at::IntArrayRef({0, 2}));
    Effect step = internal::apply_effect({"adam", "adam"}, {}, matrix(0));
    step.row_ids = numbers({});
    EXPECT_EQ(split_effect(slices, step, {}).size(), slices.size());
  }
}

// Regression: a negative number was in no slice. The server names it.
TEST(Slices, NumbersThatAreNoRowsGoToAServer) {
  const auto split = split_rows(kSlices, numbers({-1, 12}));
  ASSERT_EQ(split.size(), 2U);
  EXPECT_TRUE(at::equal(split[0].ids, numbers({-1})));
  EXPECT_TRUE(at::equal(split[1].ids, numbers({7})));
}

TEST(Slices, RowsOfAnotherSizeAreRefused) {
  const auto split = split_rows(kSlices, numbers({0, 9}));
  const std::vector<at::Tensor> rows = {matrix(1), matrix(2)};
  EXPECT_THAT([&] { joined_rows(split, rows); },
              testing::throws_error(ErrorCode::data_loss, "expected 1 rows like those of other"));
}

TEST(Slices, ValuesAreJoined) {
  std::vector<at::Tensor> parts = {matrix(1), matrix(2)};
  EXPECT_TRUE(
      at::equal(joined_slices(parts), at::tensor({0.F, 1.F, 0.F, 1.F, 2.F, 3.F}).view({3, 2})));
  std::vector<at::Tensor> one = {parts[1]};
  EXPECT_TRUE(joined_slices(one).is_same(parts[1]));
  std::vector<at::Tensor> none(2);
  EXPECT_FALSE(joined_slices(none).defined());
}

// They come from servers.
TEST(Slices, PartsThatDoNotFitAreRefused) {
  for (const at::Tensor& other :
       {at::ones({1, 3}), at::ones({1, 2}, at::kDouble), at::ones({2}), at::Tensor()}) {
    std::vector<at::Tensor> parts = {matrix(1), other};
    EXPECT_THAT([&] { joined_slices(parts); },
                testing::throws_error(ErrorCode::data_loss, "with rows of one size"));
  }
}

TEST(Slices, AnAssignmentIsDivided) {
  const at::Tensor value = matrix(10);
  const auto parts = split_effect(kSlices, internal::write_effect(Kind::assign, value), {});
  ASSERT_EQ(parts.size(), 3U);
  EXPECT_TRUE(at::equal(parts[1].effect.tensors[0], value.narrow(0, 3, 2)));
  const auto whole = split_effect(kWhole, internal::write_effect(Kind::assign, value), {});
  ASSERT_EQ(whole.size(), 1U);
  EXPECT_TRUE(whole[0].effect.tensors[0].is_same(value));
}

TEST(Slices, ChangesOfRowsKeepTheirOrder) {
  const at::Tensor rows = matrix(4);
  const auto parts = split_effect(
      kSlices, internal::write_effect(Kind::scatter_update, rows, numbers({6, 1, 6, 2})), {});
  ASSERT_EQ(parts.size(), 2U);
  EXPECT_TRUE(at::equal(parts[0].effect.row_ids, numbers({1, 2})));
  EXPECT_TRUE(at::equal(parts[0].effect.tensors[0], rows.index_select(0, numbers({1, 3}))));
  EXPECT_TRUE(at::equal(parts[1].effect.row_ids, numbers({1, 1})));
  EXPECT_TRUE(at::equal(parts[1].effect.tensors[0], rows.index_select(0, numbers({0, 2}))));
}

// Momentum moves rows without a gradient, and Adam counts its steps.
TEST(Slices, AStepGoesToAllSlices) {
  Effect step = internal::apply_effect({"adam", "adam"}, {}, matrix(2));
  step.row_ids = numbers({1, 8});
  const auto parts = split_effect(kSlices, step, {});
  ASSERT_EQ(parts.size(), 3U);
  EXPECT_EQ(parts[1].effect.row_ids.numel(), 0);
  EXPECT_EQ(parts[1].effect.tensors[0].sizes(), at::IntArrayRef({0, 2}));
  EXPECT_TRUE(at::equal(parts[2].effect.row_ids, numbers({3})));
  EXPECT_TRUE(at::equal(parts[2].effect.tensors[0], matrix(2).narrow(0, 1, 1)));
}

TEST(Slices, AnAverageHasTheVersionOfItsSlice) {
  Effect average{.kind = Kind::merge_average, .hyper = {0.5}, .tensors = {matrix(10), matrix(10)}};
  const std::vector<std::uint64_t> versions = {4, 5, 6};
  const auto parts = split_effect(kSlices, average, versions);
  ASSERT_EQ(parts.size(), 3U);
  EXPECT_EQ(parts[2].effect.version, 6U);
  EXPECT_EQ(parts[2].effect.tensors[1].size(0), 5);
  EXPECT_EQ(split_effect(kWhole, average, {{9}})[0].effect.version, 9U);
}

// Keys of 4 servers; neighbours, and keys that differ in their upper bits only.
TEST(Slices, DivideKeysByTheirHashes) {
  std::vector<rpc::Slice> by_key;
  for (std::uint64_t i = 0; i < 4; ++i) {
    by_key.push_back({.variable = 8,
                      .server = i,
                      .first_row = static_cast<std::int64_t>(i),
                      .rows = rpc::Slice::kRowsByKey});
  }
  for (const std::int64_t stride : {std::int64_t{1}, std::int64_t{1} << 50}) {
    const at::Tensor keys = at::arange(-2000, 2000, at::TensorOptions(at::kLong)).mul(stride);
    const auto split = split_rows(by_key, keys);
    ASSERT_EQ(split.size(), 4U);
    std::vector<at::Tensor> rows;
    for (const RowsOfPart& part : split) {
      EXPECT_TRUE(part.ids.equal(keys.index_select(0, part.places)));
      EXPECT_EQ(slice_of_key(part.ids[0].item<std::int64_t>(), 4), part.part);
      EXPECT_NEAR(static_cast<double>(part.ids.numel()), 1000, 120);
      rows.push_back(part.ids.unsqueeze(1));
    }
    EXPECT_TRUE(joined_rows(split, rows).squeeze(1).equal(keys));
  }
}

}  // namespace
}  // namespace cohort::parameter_server
