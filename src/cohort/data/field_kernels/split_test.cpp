// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>

#include "cohort/data/field_function.h"
#include "cohort/data/graph/dataset_op_suite.h"

namespace cohort::data {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string split_text(const std::string& text, SplitOptions options = {}) {
  return elements_of(Dataset::from_tensors(StringTensor(text)).map(split({}, options))).at(0);
}

// Recorded from tf.strings.split of TensorFlow 2.21.
TEST(Split, AtWhitespaceIsTensorFlows) {
  EXPECT_EQ(split_text("a b"), "['a', 'b']");
  EXPECT_EQ(split_text("  a  b "), "['a', 'b']");
  EXPECT_EQ(split_text(""), "[]");
  EXPECT_EQ(split_text("   "), "[]");
  EXPECT_EQ(split_text("a\tb\nc\vd\fe\rf"), "['a', 'b', 'c', 'd', 'e', 'f']");
  EXPECT_EQ(split_text("a\xa0"
                       "b"),
            "['a\xa0"
            "b']");
}

TEST(Split, AtASeparatorIsTensorFlows) {
  EXPECT_EQ(split_text("a,b", {.separator = ","}), "['a', 'b']");
  EXPECT_EQ(split_text(",a,,b,", {.separator = ","}), "['', 'a', '', 'b', '']");
  EXPECT_EQ(split_text("", {.separator = ","}), "['']");
  EXPECT_EQ(split_text("   ", {.separator = ","}), "['   ']");
  EXPECT_EQ(split_text("abcabab", {.separator = "ab"}), "['', 'c', '', '']");
  EXPECT_EQ(split_text("ababab", {.separator = "ab"}), "['', '', '', '']");
}

TEST(Split, PadsTheTokensOfABatch) {
  const Dataset batches =
      Dataset::from_tensor_slices(StringTensor({3}, {"a b", "", "c"})).batch(3).map(split({}));
  EXPECT_THAT(elements_of(batches), ElementsAre("[['a', 'b'], ['', ''], ['c', '']]"));
  EXPECT_EQ(batches.element_spec().to_string(), "string[?, ?]");
}

TEST(Split, MakesSequencesOfOneLength) {
  const Dataset lines = Dataset::from_tensor_slices(StringTensor({3}, {"a b c", "", "d"}))
                            .map(split({}, {.output_sequence_length = 2}));
  EXPECT_THAT(elements_of(lines), ElementsAre("['a', 'b']", "['', '']", "['d', '']"));
  EXPECT_EQ(lines.element_spec().to_string(), "string[2]");
  EXPECT_THAT(elements_of(lines.batch(3)), ElementsAre("[['a', 'b'], ['', ''], ['d', '']]"));
}

TEST(Split, OfNoTokensIsEmpty) {
  EXPECT_EQ(split_text("a b", {.output_sequence_length = 0}), "[]");
  EXPECT_THAT(
      error_of([] { split({}, {.output_sequence_length = -2}); }).message(),
      HasSubstr("[data.split] expected .output_sequence_length of at least 0, or -1 for as many"));
}

// The result of the layer with standardize="lower" and the same vocabulary in TensorFlow 2.21.
TEST(Split, WithLowerAndLookupIsTextVectorization) {
  const StringTensor lines({3}, {"The cat", "", "the dog sat on the mat"});
  const Dataset ids = Dataset::from_tensor_slices(lines)
                          .batch(3)
                          .map(lower({}))
                          .map(split({}, {.output_sequence_length = 4}))
                          .map(lookup({}, {.tokens = {"the", "cat"}, .mask_token = ""}));
  EXPECT_THAT(elements_of(ids), ElementsAre("[[2, 3, 0, 0], [0, 0, 0, 0], [2, 1, 1, 1]]"));
  EXPECT_EQ(ids.element_spec().to_string(), "int64[?, 4]");
}

TEST(Lower, IsTensorFlows) {
  EXPECT_THAT(
      elements_of(
          Dataset::from_tensors(StringTensor(std::string("AbC-\xc4\xff[Z@"))).map(lower({}))),
      ElementsAre("'abc-\xc4\xff[z@'"));
}

}  // namespace
}  // namespace cohort::data
