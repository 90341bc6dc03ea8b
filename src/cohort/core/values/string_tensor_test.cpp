// SPDX-License-Identifier: Apache-2.0
#include "cohort/core/string_tensor.h"

#include <gmock/gmock.h>

#include <utility>

#include "cohort/core/nest.h"
#include "cohort/core/tensor_spec.h"
#include "cohort/testing/throws_error.h"

namespace cohort {
namespace {

using ::cohort::testing::throws_error;
using ::testing::ElementsAre;

TEST(StringTensor, HoldsBytesOfAnyKind) {
  const StringTensor tensor({2, 2},
                            {"a", "", std::string("\0x", 2), "long enough to be elsewhere"});
  EXPECT_THAT(tensor.values(),
              ElementsAre("a", "", std::string("\0x", 2), "long enough to be elsewhere"));
  EXPECT_THAT(tensor.sizes(), ElementsAre(2, 2));
}

TEST(StringTensor, TravelsAsATensor) {
  const at::Tensor tensor = StringTensor("name");
  EXPECT_TRUE(StringTensor::is(tensor));
  EXPECT_EQ(StringTensor::of(tensor).value(), "name");
  EXPECT_EQ(Nest(tensor).tensor().dim(), 0);
}

TEST(StringTensor, HasASpec) {
  EXPECT_EQ(TensorSpec::of(StringTensor({2}, {"a", "b"})).to_string(), "string[2]");
}

TEST(StringTensor, RefusesTensorsOfNumbers) {
  EXPECT_FALSE(StringTensor::is(at::Tensor()));
  EXPECT_THAT([] { StringTensor::of(at::Tensor()); },
              throws_error(ErrorCode::invalid_argument, "expected"));
}

TEST(StringTensor, RefusesAWrongNumberOfValues) {
  EXPECT_THAT(
      [] {
        StringTensor({3}, {"a", "b"});
      },
      throws_error(ErrorCode::invalid_argument, "expected"));
}

TEST(StringTensor, GivesRows) {
  const StringTensor tensor({3, 2}, {"a", "b", "c", "d", "e", "f"});
  EXPECT_EQ(tensor.slice(1, 3), StringTensor({2, 2}, {"c", "d", "e", "f"}));
  EXPECT_EQ(tensor.row(2), StringTensor({2}, {"e", "f"}));
}

// The object that was moved from had no tensor, but a pointer to the bytes of the other one.
TEST(StringTensor, HasItsValuesAfterAMove) {
  StringTensor from({2}, {"a", "b"});
  const StringTensor to = std::move(from);
  EXPECT_EQ(to.values(), from.values());  // NOLINT: a use after the move is the point
  EXPECT_EQ(from.tensor().numel(), 2);
  StringTensor other("c");
  other = std::move(from);
  EXPECT_EQ(other, from);  // NOLINT
}

TEST(StringTensor, StacksAndConcatenates) {
  const at::Tensor one = StringTensor({1}, {"a"}), two = StringTensor({1}, {"b"});
  const std::vector<at::Tensor> both = {one, two};
  EXPECT_EQ(StringTensor::stack(both), StringTensor({2, 1}, {"a", "b"}));
  EXPECT_EQ(StringTensor::concatenate(both), StringTensor({2}, {"a", "b"}));
}

}  // namespace
}  // namespace cohort
