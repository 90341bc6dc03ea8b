// SPDX-License-Identifier: Apache-2.0
#include "cohort/function/tracer/sparse_gradients.h"

#include <gtest/gtest.h>

#include <string>

#include "cohort/function/program/program_builder_for_tests.h"

namespace cohort::function {
namespace {

constexpr std::int64_t kTableRows = 5000;

// A program with one gradient of an embedding, which a call takes as its second value.
class SparseGradients : public ::testing::Test {
 protected:
  struct Case {
    std::int64_t rows = kTableRows;
    std::int64_t padding = -1;
    bool by_frequency = false;
    at::ScalarType ids = at::kLong;
    bool is_output = false;
    bool has_norm = false;
    bool takes_rows = true;
  };
  // Whether it becomes sparse.
  static bool becomes_sparse(const Case& given) {
    ProgramBuilder p;
    const int other = p.input({3}), rows = p.input({7, 2}), ids = p.input({7}, given.ids);
    const int gradient = p.op("aten::embedding_dense_backward",
                              {value(rows), value(ids), integer(given.rows), integer(given.padding),
                               boolean(given.by_frequency)});
    if (given.has_norm) p.output(p.op("aten::norm", {value(gradient)}));
    p.effect("cohort::call", {text("apply"), integer(4), values({other, gradient})});
    if (given.is_output) p.output(gradient);
    Program& program = p.program();
    std::vector<std::optional<TensorSpec>> specs(static_cast<std::size_t>(program.value_count));
    for (const ProgramInput& input : program.inputs)
      specs[static_cast<std::size_t>(input.id)] = input.spec;
    make_gradients_sparse(program, specs, [&](std::int64_t call, std::size_t value) {
      EXPECT_EQ(call, 4);
      EXPECT_EQ(value, 1U);
      return given.takes_rows;
    });
    return program.ops.front().name == "aten::embedding_sparse_backward";
  }
};

TEST_F(SparseGradients, ReplaceDenseOnesThatOnlyACallTakes) {
  EXPECT_TRUE(becomes_sparse({}));
  EXPECT_FALSE(becomes_sparse({.takes_rows = false}));
  EXPECT_FALSE(becomes_sparse({.is_output = true}));
  EXPECT_FALSE(becomes_sparse({.has_norm = true}));
}

TEST_F(SparseGradients, AreNotMadeWhereTheyCouldDiffer) {
  EXPECT_FALSE(becomes_sparse({.padding = 0}));
  EXPECT_FALSE(becomes_sparse({.by_frequency = true}));
  EXPECT_FALSE(becomes_sparse({.ids = at::kInt}));
}

TEST_F(SparseGradients, AreNotWorthItForSmallTables) { EXPECT_FALSE(becomes_sparse({.rows = 17})); }

}  // namespace
}  // namespace cohort::function
