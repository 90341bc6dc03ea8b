// SPDX-License-Identifier: Apache-2.0
#include "cohort/server/closures/function_table.h"

#include <ATen/core/TensorBody.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "cohort/function/trace.h"
#include "cohort/testing/throws_error.h"

namespace cohort::server {
namespace {

using testing::throws_error;
using Tensors = std::vector<at::Tensor>;

Bytes program_for(std::int64_t length) {
  return function::trace({at::ones({length})}, {at::full({length}, 2.0)},
                         [](const Tensors& inputs) { return Tensors{inputs[0].add(1)}; }, {})
      .bytes;
}

class FunctionTableTest : public ::testing::Test {
 protected:
  // Adds one program, for inputs of that length, after the first `before` ones.
  void put(std::uint32_t before, std::int64_t length) {
    table_.put(
        {.id = 1, .name = "step", .programs_before = before, .programs = {program_for(length)}});
  }
  std::vector<const WorkerProgram*> programs() const {
    std::vector<const WorkerProgram*> all;
    for (const auto& each : table_.find(1)->programs) all.push_back(each.get());
    return all;
  }
  bool has_program_for(std::int64_t length) const {
    const Tensors inputs{at::ones({length})};
    const auto function = table_.find(1);
    return std::any_of(function->programs.begin(), function->programs.end(),
                       [&](const auto& each) { return each->fits(inputs, {}); });
  }

  FunctionTable table_;
};

// Regression: each new program made the worker decode and plan all earlier ones again.
TEST_F(FunctionTableTest, EachProgramIsPlannedOnce) {
  constexpr std::uint32_t kPrograms = 40;
  std::set<const WorkerProgram*> made;
  std::vector<std::shared_ptr<const WorkerFunction>> kept;  // so that no address comes again
  for (std::uint32_t i = 0; i < kPrograms; ++i) {
    put(i, 1 + i);
    for (const WorkerProgram* each : programs()) made.insert(each);
    kept.push_back(table_.find(1));
  }
  EXPECT_EQ(programs().size(), kPrograms);
  EXPECT_EQ(made.size(), kPrograms);
  EXPECT_TRUE(has_program_for(1));
  EXPECT_TRUE(has_program_for(kPrograms));
}

TEST_F(FunctionTableTest, AProgramThatAnotherWorkerRefusedIsReplaced) {
  put(0, 1);
  put(1, 2);
  put(1, 3);
  EXPECT_EQ(programs().size(), 2U);
  EXPECT_FALSE(has_program_for(2));
  EXPECT_TRUE(has_program_for(3));
}

TEST_F(FunctionTableTest, TheWholeFunctionReplacesWhatWasHere) {
  put(0, 1);
  put(1, 2);
  put(0, 3);
  EXPECT_EQ(programs().size(), 1U);
}

TEST_F(FunctionTableTest, ProgramsAfterOnesThatAreNotHereAreRefused) {
  const auto is_missing = [&](std::uint32_t before) {
    try {
      put(before, 2);
    } catch (const Error& error) {
      return error.cause() == ErrorCause::function_missing;
    }
    return false;
  };
  EXPECT_TRUE(is_missing(1));
  put(0, 1);
  EXPECT_TRUE(is_missing(2));
  EXPECT_EQ(programs().size(), 1U);
}

TEST_F(FunctionTableTest, AVariableWithoutAServerIsNamed) {
  const at::Tensor value = at::ones({2});
  const function::TracedVariable variable{.name = "w", .is_trainable = false, .tensor = value};
  function::TraceOptions options;
  options.variable_of = [&](const void* storage) {
    return storage == value.storage().unsafeGetStorageImpl() ? &variable : nullptr;
  };
  const Bytes program =
      function::trace(
          {at::ones({2})}, {at::full({2}, 2.0)},
          [&](const Tensors& inputs) { return Tensors{inputs[0].add(value)}; }, options)
          .bytes;
  EXPECT_THAT([&] { table_.put({.id = 1, .name = "step", .programs = {program}}); },
              throws_error(ErrorCode::invalid_argument, "function 'step' uses variable 'w'"));
}

}  // namespace
}  // namespace cohort::server
