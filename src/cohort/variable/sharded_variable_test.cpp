// SPDX-License-Identifier: Apache-2.0
// Shards as one variable, and lookups of rows, beside the same on one whole tensor.
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/embedding_bag.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/sparse_coo_tensor.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <random>

#include "cohort/core/error.h"
#include "cohort/testing/throws_error.h"
#include "cohort/variable/initializer.h"
#include "cohort/variable/state_walk.h"
#include "cohort/variable/variable.h"

namespace cohort {
namespace {

using ::testing::ElementsAre;
using testing::throws_error;

at::Tensor row_numbers(const std::vector<std::int64_t>& all) { return at::tensor(all, at::kLong); }
at::Tensor matrix(std::int64_t rows) {
  return at::arange(2 * rows).to(at::kFloat).view({rows, 2}).clone();
}

ShardedVariable shards_of(const at::Tensor& value, const std::vector<std::int64_t>& rows) {
  std::vector<Variable> shards;
  std::int64_t first = 0;
  for (const std::int64_t count : rows) {
    const std::string name = "part_" + std::to_string(shards.size());
    shards.push_back(local_variable(name, value.narrow(0, first, count).clone()));
    first += count;
  }
  return {"table", std::move(shards)};
}

// The rows of a Python slice, counted one by one.
std::vector<std::int64_t> python_slice(std::int64_t rows, std::optional<std::int64_t> start,
                                       std::optional<std::int64_t> stop, std::int64_t step) {
  const auto absolute = [&](std::int64_t bound) { return bound < 0 ? bound + rows : bound; };
  std::vector<std::int64_t> taken;
  const std::int64_t far = 4 * rows + 4;
  for (std::int64_t i = 0; i < far; ++i) {
    const std::int64_t end = step > 0 ? std::min(stop ? absolute(*stop) : rows, rows)
                                      : std::max(stop ? absolute(*stop) : -1, std::int64_t{-1});
    std::int64_t begin = step > 0 ? 0 : rows - 1;
    if (start && step > 0) begin = std::max(absolute(*start), std::int64_t{0});
    if (start && step < 0) begin = std::min(absolute(*start), rows - 1);
    const std::int64_t row = begin + i * step;
    const bool is_over = step > 0 ? row >= end : row <= end;
    if (is_over) break;
    taken.push_back(row);
  }
  return taken;
}

TEST(ShardedVariable, SlicesAreThoseOfPython) {
  std::mt19937 random(7);
  const auto number = [&](std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(random);
  };
  for (int i = 0; i < 400; ++i) {
    const std::vector<std::int64_t> rows = {number(1, 4), number(1, 4), number(1, 4)};
    const std::int64_t all = rows[0] + rows[1] + rows[2];
    const at::Tensor value = matrix(all);
    const ShardedVariable variable = shards_of(value, rows);
    std::optional<std::int64_t> start, stop;
    if (number(0, 4) > 0) start = number(-2 * all, 2 * all);
    if (number(0, 4) > 0) stop = number(-2 * all, 2 * all);
    std::int64_t step = number(-5, 5);
    if (step == 0) step = 1;
    const at::Tensor expected =
        value.index_select(0, row_numbers(python_slice(all, start, stop, step)));
    ASSERT_TRUE(at::equal(variable.slice(start, stop, step), expected))
        << start.value_or(-99) << ":" << stop.value_or(-99) << ":" << step << " of " << all;
  }
}

TEST(ShardedVariable, IsOneVariableOfItsShards) {
  const ShardedVariable table = shards_of(matrix(7), {3, 2, 2});
  EXPECT_EQ(table.variable().spec(), (TensorSpec{at::kFloat, {{7, 2}}}));
  EXPECT_THAT(table.offsets(), ElementsAre(0, 3, 5));
  EXPECT_TRUE(at::equal(table.variable().read(), matrix(7)));
  EXPECT_TRUE(at::equal(table[-1], matrix(7)[6]));
  EXPECT_THAT([&] { table[7]; }, throws_error(ErrorCode::out_of_range, "from -7 to 6, got 7"));
  table.variable().assign_add(at::ones({7, 2}));
  EXPECT_TRUE(at::equal(table.shards()[1].read(), matrix(7).narrow(0, 3, 2) + 1));
  table.variable().scatter_update(row_numbers({6, 0, 6}),
                                  at::tensor({1, 1, 2, 2, 3, 3}, at::kFloat).view({3, 2}));
  EXPECT_TRUE(at::equal(table[6], at::full({2}, 3, at::kFloat)));
  EXPECT_TRUE(at::equal(table.sparse_read(row_numbers({6, 0, 6})),
                        at::tensor({3, 3, 2, 2, 3, 3}, at::kFloat).view({3, 2})));
}

TEST(ShardedVariable, AWholeVariableIsItsOnlyShard) {
  const ShardedVariable alone(local_variable("w", matrix(3)));
  EXPECT_THAT(alone.shards(), ElementsAre(alone.variable()));
  EXPECT_THAT(alone.offsets(), ElementsAre(0));
  EXPECT_TRUE(at::equal(alone.slice({}, {}, -2), matrix(3).index_select(0, row_numbers({2, 0}))));
}

TEST(ShardedVariable, RefusesShardsThatDoNotFit) {
  const Variable a = local_variable("a", matrix(3));
  EXPECT_THAT([] { ShardedVariable("t", {}); },
              throws_error(ErrorCode::invalid_argument, "at least one shard"));
  EXPECT_THAT(
      [&] {
        ShardedVariable("t", {a, local_variable("b", at::zeros({3, 3}))});
      },
      throws_error(ErrorCode::invalid_argument, "'b' float32[3, 3]"));
  EXPECT_THAT(
      [&] {
        ShardedVariable("t", {a, local_variable("b", at::zeros({}))});
      },
      throws_error(ErrorCode::invalid_argument, "'b' float32[]"));
  EXPECT_THAT(
      [&] {
        ShardedVariable("t", {a, a});
      },
      throws_error(ErrorCode::invalid_argument, "which is one of 't'"));
  {
    const ShardedVariable first("first", {a});
    EXPECT_THAT([&] { ShardedVariable("second", {a}); },
                throws_error(ErrorCode::invalid_argument, "which is one of 'first'"));
  }
  EXPECT_EQ(ShardedVariable("third", {a}).shards().size(), 1U);
}

TEST(ShardedVariable, ScatterAndSparseReadNeedEvenShards) {
  const ShardedVariable odd = shards_of(matrix(5), {1, 4});
  EXPECT_THAT([&] { odd.sparse_read(row_numbers({0})); },
              throws_error(ErrorCode::unimplemented, "1 rows in shard 0"));
  EXPECT_THAT(
      [&] {
        odd.variable().scatter_add(row_numbers({0}), at::ones({1, 2}));
      },
      throws_error(ErrorCode::unimplemented, "embedding_lookup"));
  EXPECT_TRUE(at::equal(embedding_lookup(odd.variable(), row_numbers({4, 0, 1})),
                        matrix(5).index_select(0, row_numbers({4, 0, 1}))));
}

TEST(ShardedVariable, StateGoesToOtherShards) {
  const ShardedVariable from = shards_of(matrix(7), {3, 4});
  const std::vector<Variable> variables = {from.variable()};
  const std::vector<VariableRecord> state = whole_state(variables, {});
  const ShardedVariable into = shards_of(at::zeros({7, 2}), {1, 5, 1});
  import_state(into.variable(), state[0]);
  EXPECT_TRUE(at::equal(into.variable().read(), matrix(7)));
}

TEST(ShardedVariable, StepsUseTheShards) {
  const ShardedVariable table = shards_of(matrix(4), {2, 2});
  EXPECT_THAT([&] { table.variable().tensor(); },
              throws_error(ErrorCode::failed_precondition, "use its shards()"));
}

TEST(EmbeddingLookup, GradientsFlowToTheRows) {
  const Variable whole = local_variable("w", matrix(4));
  const ShardedVariable divided = shards_of(matrix(4), {3, 1});
  const at::Tensor ids = row_numbers({3, 0, 3, 1}).view({2, 2});
  const at::Tensor scale = at::rand({2, 2, 2});
  const at::Tensor expected =
      torch::autograd::grad({(embedding_lookup(whole, ids) * scale).sum()}, {whole.tensor()})[0];
  const at::Tensor rows = embedding_lookup(divided.variable(), ids);
  EXPECT_TRUE(at::equal(rows, embedding_lookup(whole, ids)));
  const auto gradients = torch::autograd::grad(
      {(rows * scale).sum()}, {divided.shards()[0].tensor(), divided.shards()[1].tensor()});
  EXPECT_TRUE(at::equal(gradients[0], expected.narrow(0, 0, 3)));
  EXPECT_TRUE(at::equal(gradients[1], expected.narrow(0, 3, 1)));
}

TEST(EmbeddingLookup, ScalesLongRowsToTheNorm) {
  const Variable w = local_variable("w", at::tensor({0, 0, 3, 4}, at::kFloat).view({2, 2}));
  const at::Tensor rows = embedding_lookup(w, row_numbers({0, 1}), 2.5);
  EXPECT_TRUE(at::equal(rows, at::tensor({0.0, 0.0, 1.5, 2.0}, at::kFloat).view({2, 2})));
  const at::Tensor gradient = torch::autograd::grad({rows.sum()}, {w.tensor()})[0];
  EXPECT_TRUE(gradient.isfinite().all().item<bool>());
}

TEST(EmbeddingLookup, RefusesIdsThatAreNoRows) {
  const Variable w = local_variable("w", matrix(4));
  EXPECT_THAT(
      [&] {
        embedding_lookup(w, row_numbers({0, 4}));
      },
      throws_error(ErrorCode::invalid_argument, "the 4 rows of variable 'w', got 4 at"));
  EXPECT_THAT([&] { embedding_lookup(w, at::ones({2})); },
              throws_error(ErrorCode::invalid_argument, "float32[2]"));
}

// Bags as rows of a sparse tensor.
at::Tensor sparse(const std::vector<std::vector<std::int64_t>>& bags, const at::Tensor& values,
                  std::int64_t width) {
  std::vector<std::int64_t> rows, columns;
  for (std::size_t i = 0; i < bags.size(); ++i) {
    for (std::size_t k = 0; k < bags[i].size(); ++k) {
      rows.push_back(static_cast<std::int64_t>(i));
      columns.push_back(static_cast<std::int64_t>(k));
    }
  }
  return at::sparse_coo_tensor(at::stack({row_numbers(rows), row_numbers(columns)}), values,
                               {static_cast<std::int64_t>(bags.size()), width});
}

TEST(SparseLookup, HasTheNumbersOfEmbeddingBag) {
  const ShardedVariable table = shards_of(matrix(9), {3, 3, 3});
  const std::vector<std::vector<std::int64_t>> bags = {{8, 0, 4}, {}, {5, 5}, {1}};
  const at::Tensor ids = row_numbers({8, 0, 4, 5, 5, 1}), offsets = row_numbers({0, 3, 3, 5});
  const at::Tensor sums =
      std::get<0>(at::embedding_bag(matrix(9), ids, offsets, false, /*mode=*/0));
  const at::Tensor means =
      std::get<0>(at::embedding_bag(matrix(9), ids, offsets, false, /*mode=*/1));
  const auto look_up = [&](SparseLookupOptions options) {
    return embedding_lookup_sparse(table.variable(), sparse(bags, ids, 3), options);
  };
  EXPECT_TRUE(at::equal(look_up({.combiner = EmbeddingCombiner::sum}), sums));
  EXPECT_TRUE(look_up({}).allclose(means));
  const at::Tensor weights = sparse(bags, at::tensor({1, 2, 1, 3, 0, 1}, at::kDouble), 3);
  const at::Tensor weighted = look_up({.weights = weights});
  const at::Tensor first = (matrix(9)[8] + 2 * matrix(9)[0] + matrix(9)[4]) / 4;
  EXPECT_TRUE(weighted[0].allclose(first));
  EXPECT_TRUE(at::equal(weighted[1], at::zeros({2})));
  const at::Tensor rooted = look_up({.weights = weights, .combiner = EmbeddingCombiner::sqrtn});
  EXPECT_TRUE(rooted[0].allclose(first * 4 / std::sqrt(6.0)));
}

TEST(SparseLookup, TheSafeOneLeavesOutWhatIsMissing) {
  const Variable w = local_variable("w", matrix(9));
  const std::vector<std::vector<std::int64_t>> bags = {{8, -1}, {-3}, {4}, {2}};
  const at::Tensor ids = sparse(bags, row_numbers({8, -1, -3, 4, 2}), 2);
  const at::Tensor weights = sparse(bags, at::tensor({1, 1, 1, 0, 2}, at::kFloat), 2);
  const at::Tensor rows = safe_embedding_lookup_sparse(w, ids, {.weights = weights});
  EXPECT_TRUE(
      at::equal(rows, at::stack({matrix(9)[8], at::zeros({2}), at::zeros({2}), matrix(9)[2]})));
  const at::Tensor with_default =
      safe_embedding_lookup_sparse(w, ids, {.weights = weights, .default_id = 3});
  EXPECT_TRUE(at::equal(with_default[1], matrix(9)[3]));
  // tf keeps weights of 0 and less in sums.
  const at::Tensor sums = safe_embedding_lookup_sparse(
      w, ids, {.weights = weights, .combiner = EmbeddingCombiner::sum, .default_id = 3});
  EXPECT_TRUE(
      at::equal(sums, at::stack({matrix(9)[8], matrix(9)[3], at::zeros({2}), 2 * matrix(9)[2]})));
}

TEST(SparseLookup, RefusesWhatDoesNotFit) {
  const Variable w = local_variable("w", matrix(9));
  const at::Tensor ids = sparse({{1}, {2}}, row_numbers({1, 2}), 1);
  EXPECT_THAT([&] { embedding_lookup_sparse(w, row_numbers({1})); },
              throws_error(ErrorCode::invalid_argument, "a sparse tensor of ids"));
  EXPECT_THAT([&] { embedding_lookup_sparse(w, ids, {.weights = ids}); },
              throws_error(ErrorCode::invalid_argument, "floating-point weights"));
  EXPECT_THAT([&] { embedding_lookup_sparse(w, ids, {.default_id = 1}); },
              throws_error(ErrorCode::invalid_argument, "no default_id"));
}

TEST(InitializerFunction, MakesTheRowsThatAreAskedFor) {
  std::vector<std::vector<std::int64_t>> calls;
  const Initializer by_rows = Initializer::function([&](const TensorSpec&, RowRange rows) {
    calls.push_back({rows.begin, rows.end});
    return matrix(5).narrow(0, rows.begin, rows.end - rows.begin);
  });
  const TensorSpec spec{at::kFloat, {{5, 2}}};
  EXPECT_TRUE(at::equal(by_rows.make_rows(spec, {2, 4}, "w", 1), matrix(5).narrow(0, 2, 2)));
  EXPECT_TRUE(at::equal(by_rows.make(spec, "w", 1), matrix(5)));
  EXPECT_THAT(calls, ElementsAre(ElementsAre(2, 4), ElementsAre(0, 5)));
  const Initializer whole =
      Initializer::function([](const TensorSpec&, RowRange) { return matrix(5); });
  EXPECT_TRUE(at::equal(whole.make_rows(spec, {2, 4}, "w", 1), matrix(5).narrow(0, 2, 2)));
  EXPECT_THAT(
      [&] {
        whole.make({at::kFloat, {{4, 2}}}, "w", 1);
      },
      throws_error(ErrorCode::invalid_argument, "float32[5, 2]"));
  EXPECT_THAT(
      [&] {
        whole.make({at::kDouble, {{5, 2}}}, "w", 1);
      },
      throws_error(ErrorCode::invalid_argument, "float32[5, 2]"));
}

}  // namespace
}  // namespace cohort
