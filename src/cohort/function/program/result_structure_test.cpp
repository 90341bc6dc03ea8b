// SPDX-License-Identifier: Apache-2.0
#include "cohort/function/program/result_structure.h"

#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cohort/core/error.h"
#include "cohort/testing/throws_error.h"

namespace cohort::function {
namespace {

using testing::throws_error;
using Tensors = std::vector<at::Tensor>;

ResultStructure structure_of(const Nest& result) {
  Tensors tensors;
  return ResultStructure(result, tensors);
}

TEST(ResultStructure, IsFilledWithOtherTensors) {
  Tensors tensors;
  const ResultStructure structure(
      Nest::map({{"loss", at::zeros({})}, {"more", Nest::list({3, at::zeros({1})})}}), tensors);
  EXPECT_EQ(tensors.size(), 2U);
  EXPECT_EQ(structure.tensor_count(), 2U);
  const Tensors others{at::ones({}), at::ones({1})};
  const Nest filled = structure.filled(others);
  EXPECT_TRUE(filled.entries().at("loss").tensor().is_same(others[0]));
  EXPECT_EQ(filled.entries().at("more").items()[0].integer(), 3);
  EXPECT_TRUE(filled.entries().at("more").items()[1].tensor().is_same(others[1]));
}

TEST(ResultStructure, OfNothingIsNothing) { EXPECT_TRUE(structure_of({}).filled({}).is_null()); }

TEST(ResultStructure, AnotherHostValueOrStructureIsRefused) {
  const ResultStructure one = structure_of(Nest::tuple({at::ones({}), 1.5}));
  one.check_same(structure_of(Nest::tuple({at::zeros({}), 1.5})), "step", "on its second trace");
  EXPECT_THAT(
      [&] {
        one.check_same(structure_of(Nest::tuple({at::ones({}), 2.5})), "step",
                       "on its second trace");
      },
      throws_error(ErrorCode::invalid_argument,
                   "'step' returned another number or text as part 1 of its result on its second "
                   "trace"));
  EXPECT_THAT(
      [&] { one.check_same(structure_of(at::ones({})), "step", "for another element"); },
      throws_error(ErrorCode::invalid_argument, "the result of 'step' for another element"));
}

}  // namespace
}  // namespace cohort::function
