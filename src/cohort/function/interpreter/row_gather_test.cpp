// SPDX-License-Identifier: Apache-2.0
#include "cohort/function/interpreter/row_gather.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cohort/core/error.h"
#include "cohort/function/program/program_builder_for_tests.h"
#include "cohort/function/program/wire.h"
#include "cohort/testing/error_of.h"
#include "cohort/testing/throws_error.h"

namespace cohort::function {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::throws_error;
using Tensors = std::vector<at::Tensor>;

// Used only from the thread that runs the program.
class Host final : public internal::EffectHandler {
 public:
  Tensors iterator_next(std::int64_t) override { return {}; }
  void update(internal::Effect effect) override { effects.push_back(std::move(effect)); }
  Read read(std::span<const RowRead> tables, std::span<const std::int64_t> variables) override {
    for (const RowRead& table : tables) ids.push_back(table.ids);
    Read read{.rows = rows};
    for (const std::int64_t variable : variables)
      read.variables.push_back(at::full({2}, static_cast<double>(variable)));
    return read;
  }

  Tensors ids;
  Tensors rows;  // what read() gives
  std::vector<internal::Effect> effects;
};

at::Tensor ids_of(std::vector<std::int64_t> ids) { return at::tensor(ids, at::kLong); }

class RowGatherTest : public ::testing::Test {
 protected:
  int table(const std::string& name, std::vector<std::int64_t> sizes) {
    const int id = p.variable(name, std::move(sizes));
    p.program().variables.back().is_read = false;
    p.program().variables.back().is_handle_only = true;
    return id;
  }
  // The rows of a table, their ids, and the places of `ids` among them.
  std::vector<int> gather(std::int64_t table, int ids, std::int64_t padding = -1) {
    return p.list_op(
        "cohort::gather",
        {integers({table}), integers({padding}), integers({1}), values({ids}), integers({})}, 3);
  }
  std::shared_ptr<const PreparedProgram> prepared() {
    return PreparedProgram::decode(encode(p.program()));
  }
  Tensors run(const Tensors& inputs) {
    return prepared()->run(inputs, Tensors(p.program().variables.size()), host, 1);
  }

  ProgramBuilder p;
  Host host;
};

TEST_F(RowGatherTest, GathersTheRowsOfSeveralTables) {
  const int x = p.input({2, 2}, at::kLong);
  const int y = p.input({1}, at::kInt);
  const int z = p.input({3}, at::kLong);
  table("first", {10, 2});
  table("second", {5, 1});
  const int dense = p.variable("dense", {2});
  p.program().variables.back().is_read = false;
  const std::vector<int> results = p.list_op(
      "cohort::gather",
      {integers({0, 1}), integers({-1, 4}), integers({2, 1}), values({x, y, z}), integers({2})}, 7);
  for (const int id : results) p.output(id);
  p.output(dense);
  host.rows = {at::arange(8).to(at::kFloat).view({4, 2}), at::ones({2, 1})};
  const Tensors outputs =
      run({ids_of({7, 3, 7, 5}).view({2, 2}), at::tensor({9}, at::kInt), ids_of({4, 2, 4})});
  ASSERT_EQ(host.ids.size(), 2U);
  EXPECT_TRUE(at::equal(host.ids[0], ids_of({3, 5, 7, 9})));
  EXPECT_TRUE(at::equal(host.ids[1], ids_of({4, 2})));
  EXPECT_TRUE(at::equal(outputs[0], host.rows[0]));
  EXPECT_TRUE(at::equal(outputs[1], ids_of({3, 5, 7, 9, internal::kNoRow})));
  EXPECT_TRUE(
      at::equal(outputs[3], ids_of({internal::kNoRow, 2, internal::kNoRow, internal::kNoRow})));
  EXPECT_TRUE(at::equal(outputs[4], at::tensor({2, 0, 2, 1}, at::kLong).view({2, 2})));
  EXPECT_TRUE(at::equal(outputs[5], at::tensor({3}, at::kInt)));
  EXPECT_TRUE(at::equal(outputs[6], at::tensor({0, 1, 0}, at::kLong)));
  EXPECT_TRUE(at::equal(outputs[7], at::full({2}, 2.0)));
}

TEST_F(RowGatherTest, TheRowsThatWereGatheredAreUpdated) {
  const int x = p.input({3}, at::kLong);
  table("table", {10, 1});
  const std::vector<int> results = gather(0, x, 7);
  const int gradient = p.constant(at::arange(4).to(at::kFloat).view({4, 1}));
  const int rate = p.constant(at::full({}, 8.0, at::kDouble));
  p.effect("cohort::apply_rows", {text("sgd"), text("sgd_1"), integer(0), value(results[1]),
                                  value(gradient), values({rate})});
  host.rows = {at::zeros({3, 1})};
  run({ids_of({9, 7, 2})});
  ASSERT_EQ(host.effects.size(), 1U);
  EXPECT_TRUE(at::equal(host.effects[0].row_ids, ids_of({2, 9})));
  EXPECT_TRUE(at::equal(host.effects[0].tensors[0], at::tensor({1.0F, 2.0F}).view({2, 1})));
  EXPECT_THAT(host.effects[0].hyper, ElementsAre(8.0));
}

TEST_F(RowGatherTest, RefusesIdsThatAreNoRows) {
  const int x = p.input({2}, at::kLong);
  table("table", {10, 1});
  p.output(gather(0, x)[0]);
  for (const std::int64_t wrong : {-1, 10}) {
    EXPECT_THAT(
        [&] {
          run({ids_of({3, wrong})});
        },
        throws_error(ErrorCode::invalid_argument,
                     "expected ids of the 10 rows of variable 'table', got " +
                         std::to_string(wrong) + " at position 1"));
  }
}

TEST_F(RowGatherTest, RefusesRowsOfAnotherSpec) {
  const int x = p.input({2}, at::kLong);
  table("table", {10, 1});
  p.output(gather(0, x)[0]);
  host.rows = {at::zeros({1, 1})};
  EXPECT_THAT(
      [&] {
        run({ids_of({3, 4})});
      },
      throws_error(ErrorCode::invalid_argument, "float32[2, 1], got float32[1, 1]"));
  host.rows = {};
  EXPECT_THAT(
      [&] {
        run({ids_of({3, 4})});
      },
      throws_error(ErrorCode::internal, "expected 1 tables, got 0"));
}

TEST_F(RowGatherTest, RefusesListsThatDoNotFit) {
  const int x = p.input({2}, at::kLong);
  table("table", {10, 1});
  gather(0, x);
  const Op good = p.program().ops[0];
  const auto refused = [&](std::size_t place, std::vector<std::int64_t> list) {
    p.program().ops = {good};
    p.program().ops[0].args[place] = integers(std::move(list));
    return testing::code_of([&] { prepared(); });
  };
  EXPECT_EQ(refused(0, {0, 0}), ErrorCode::data_loss);
  EXPECT_EQ(refused(0, {1}), ErrorCode::data_loss);
  EXPECT_EQ(refused(1, {}), ErrorCode::data_loss);
  EXPECT_EQ(refused(2, {2}), ErrorCode::data_loss);
  EXPECT_EQ(refused(2, {-1}), ErrorCode::data_loss);
  EXPECT_EQ(refused(4, {1}), ErrorCode::data_loss);
}

// A table: a handle without rows.
TEST_F(RowGatherTest, AnyNumberButTheLeastIsAKeyOfATable) {
  const int x = p.input({4}, at::kLong);
  table("users", {0, 1});
  for (const int id : gather(0, x)) p.output(id);
  host.rows = {at::ones({3, 1})};
  const Tensors outputs = run({ids_of({-1, 1L << 62, -1, -9})});
  EXPECT_TRUE(at::equal(host.ids.at(0), ids_of({-9, -1, 1L << 62})));
  EXPECT_TRUE(at::equal(outputs[1], ids_of({-9, -1, 1L << 62, internal::kNoRow})));
  EXPECT_TRUE(at::equal(outputs[2], ids_of({1, 2, 1, 0})));
  EXPECT_THAT(
      [&] {
        run({ids_of({1, 2, internal::kNoRow, 4})});
      },
      throws_error(ErrorCode::invalid_argument, "stands for no key, got it at position 2"));
}

TEST(DropUnused, TakesOutIdsOfSeveralLookups) {
  at::Tensor ids = ids_of({internal::kNoRow, 4, 5, internal::kNoRow, -7, internal::kNoRow});
  at::Tensor rows = at::arange(6).view({6, 1});
  drop_unused(ids, rows);
  EXPECT_TRUE(at::equal(ids, ids_of({4, 5, -7})));
  EXPECT_TRUE(at::equal(rows, at::tensor({1, 2, 4}).view({3, 1})));
}

}  // namespace
}  // namespace cohort::function
