// SPDX-License-Identifier: Apache-2.0
#include <ATen/ops/tensor.h>
#include <gmock/gmock.h>

#include "cohort/data/field_function.h"
#include "cohort/data/files/file_fixture.h"
#include "cohort/data/files/file_scanner.h"
#include "cohort/data/graph/dataset_op_suite.h"

namespace cohort::data {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Indices = std::vector<std::int64_t>;

Dataset cities() {
  return Dataset::from_tensor_slices(
      StringTensor({8}, {"Berlin", "Lima", "", "Oslo", "Rome", "Quito", "Bern", "lima"}));
}

const std::vector<std::string> kCities{"Berlin", "Lagos", "Lima"};

Dataset ids() {
  return Dataset::from_tensor_slices(
      at::tensor(std::vector<std::int64_t>{5, 7, -1, 0, 100, -100, 8}));
}

std::string refusal(const LookupOptions& options) {
  return error_of([&] { lookup({}, options); }).message();
}

// Recorded from tf.keras.layers.StringLookup of TensorFlow 2.21.
TEST(Lookup, OfStringsIsStringLookups) {
  EXPECT_EQ(scalars_of(cities().map(lookup({}, {.tokens = kCities}))),
            Indices({1, 3, 0, 0, 0, 0, 0, 0}));
  EXPECT_EQ(scalars_of(cities().map(
                lookup({}, {.tokens = kCities, .num_oov_indices = 4, .mask_token = ""}))),
            Indices({5, 7, 0, 3, 2, 1, 4, 4}));
}

// Recorded from tf.keras.layers.IntegerLookup of TensorFlow 2.21.
TEST(Lookup, OfIntegersIsIntegerLookups) {
  const auto indices_of = [](const LookupOptions& options) {
    return scalars_of(ids().map(lookup({}, options)));
  };
  EXPECT_EQ(indices_of({.integers = {5, 7, 9}}), Indices({1, 2, 0, 0, 0, 0, 0}));
  EXPECT_EQ(indices_of({.integers = {5, 7, 9}, .num_oov_indices = 3}),
            Indices({3, 4, 2, 0, 1, 2, 2}));
  EXPECT_EQ(indices_of({.integers = {5, 7, 9}, .mask_token = 0}), Indices({2, 3, 1, 0, 1, 1, 1}));
  EXPECT_EQ(indices_of({.integers = {-1, 5}, .num_oov_indices = 3, .mask_token = 0}),
            Indices({5, 2, 4, 0, 2, 3, 3}));
}

TEST(Lookup, TakesIntegersOfAnyWidth) {
  const Dataset small = Dataset::from_tensor_slices(at::tensor(std::vector<int>{7, 8}, at::kInt));
  EXPECT_EQ(scalars_of(small.map(lookup({}, {.integers = {5, 7}}))), Indices({2, 0}));
}

TEST(Lookup, WithoutOovIndicesAValueOutsideIsAnError) {
  const Dataset found = cities().take(4).map(
      lookup({}, {.tokens = {"Berlin", "Lima", "Oslo"}, .num_oov_indices = 0}));
  EXPECT_THAT(elements_of(found), ElementsAre("0", "1", "error invalid_argument", "2"));
  Iterator iterator =
      cities().batch(8).map(lookup({}, {.tokens = kCities, .num_oov_indices = 0})).iterator();
  EXPECT_THAT(error_of([&] { iterator.get_next(); }).message(),
              AllOf(HasSubstr("expected a value of the vocabulary in the element, got '' (value 2"),
                    HasSubstr("set .num_oov_indices")));
}

TEST(Lookup, RefusesAVocabularyThatIsNone) {
  EXPECT_THAT(refusal({}), HasSubstr("expected a vocabulary that is not empty in exactly one of "
                                     ".tokens, .integers and .file, got 0"));
  EXPECT_THAT(refusal({.tokens = {"a"}, .integers = {1}}), HasSubstr("got 2"));
  EXPECT_THAT(refusal({.tokens = {"a", "b", "a"}}),
              HasSubstr("expected different tokens in .tokens, got 'a' as number 0 and as number "
                        "2 (counted from 0)"));
  EXPECT_THAT(refusal({.integers = {4, 4}}),
              HasSubstr("expected different values in .integers, got 4 as number 0 and as number"));
  EXPECT_THAT(refusal({.tokens = {"a"}, .num_oov_indices = -1}),
              HasSubstr("expected .num_oov_indices of at least 0, got -1"));
}

TEST(Lookup, RefusesReservedTokens) {
  EXPECT_THAT(refusal({.tokens = {"[UNK]", "a"}}), HasSubstr("got '[UNK]' in front; leave it out"));
  EXPECT_THAT(refusal({.tokens = {"a", ""}, .mask_token = ""}),
              HasSubstr("expected a vocabulary without the .mask_token, which has the index 0, got "
                        "it as number 1"));
  EXPECT_THAT(refusal({.tokens = {"a"}, .mask_token = 0}),
              HasSubstr("expected .mask_token to be of the vocabulary's kind, text, got int"));
}

TEST(Lookup, RefusesFieldsOfAnotherKind) {
  EXPECT_THAT(error_of([] { ids().map(lookup({}, {.tokens = {"5"}})); }).message(),
              HasSubstr("[data.lookup] expected strings in the element, got int64[]; give a "
                        "vocabulary of numbers as .integers"));
  EXPECT_THAT(error_of([] { cities().map(lookup({}, {.integers = {5}})); }).message(),
              HasSubstr("expected integers in the element, got string; give a vocabulary of "
                        "strings"));
}

// Regression: the error suggested .integers for a field of real numbers.
TEST(Lookup, SaysWhichFieldsHaveAVocabulary) {
  const Dataset reals = Dataset::from_tensor_slices(at::tensor({1.5F}));
  const auto said = [](const Dataset& dataset, const LookupOptions& options) {
    return error_of([&] { dataset.map(lookup({}, options)); }).message();
  };
  EXPECT_THAT(said(reals, {.tokens = {"5"}}),
              HasSubstr("expected strings in the element, got float32[], which has no vocabulary; "
                        "name a field of strings"));
  EXPECT_THAT(said(reals, {.integers = {5}}),
              HasSubstr("expected integers in the element, got float32, which has no vocabulary; "
                        "name a field of integers"));
  EXPECT_THAT(said(ids(), {.tokens = {"5"}}),
              HasSubstr("as .integers, or name a field of strings"));
  EXPECT_THAT(said(cities(), {.integers = {5}}),
              HasSubstr("as .tokens or .file, or name a field of integers"));
}

TEST(Lookup, KnowsHowManyIndicesItHas) {
  const ScratchDirectory directory;
  EXPECT_EQ(vocabulary_size({.tokens = kCities}), 4);
  EXPECT_EQ(vocabulary_size({.tokens = kCities, .num_oov_indices = 4, .mask_token = ""}), 8);
  EXPECT_EQ(vocabulary_size({.integers = {5, 7}, .num_oov_indices = 0}), 2);
  EXPECT_EQ(vocabulary_size({.file = directory.write("v", "a\nb\n")}), 3);
}

// Regression: cardinality returned a number of rows for options that lookup() refuses.
TEST(Lookup, TheSizeOfWhatIsRefusedIsRefused) {
  for (const LookupOptions& options :
       {LookupOptions{.tokens = {"a"}, .num_oov_indices = -1}, LookupOptions{.tokens = {"a", "a"}},
        LookupOptions{.tokens = {"a", "b"}, .mask_token = "a"}}) {
    EXPECT_EQ(error_of([&] { vocabulary_size(options); }).code(), ErrorCode::invalid_argument);
  }
}

// Regression: with a file, cardinality returned a number.
TEST(Lookup, TheSizeOfAFileThatIsRefusedIsRefused) {
  const ScratchDirectory directory;
  const std::string file = directory.write("v", "a\nb\n");
  EXPECT_EQ(vocabulary_size({.file = file, .mask_token = "c"}), 4);
  EXPECT_THAT(error_of([&] { vocabulary_size({.file = file, .mask_token = "b"}); }).message(),
              HasSubstr("expected a vocabulary without the .mask_token"));
  EXPECT_EQ(error_of([&] {
              vocabulary_size({.integers = {1, 1}});
            }).code(),
            ErrorCode::invalid_argument);
}

class VocabularyFile : public ::testing::Test {
 protected:
  Dataset looked_up(std::string_view bytes) const {
    return cities().take(2).map(lookup({}, {.file = directory_.write("v", bytes)}));
  }
  Error error_with(std::string_view bytes) const {
    const Dataset dataset = looked_up(bytes);
    return error_of([&] { dataset.iterator(); });
  }

  ScratchDirectory directory_;
};

TEST_F(VocabularyFile, HasOneTokenALine) {
  EXPECT_EQ(scalars_of(looked_up("Lima\nBerlin\n")), Indices({2, 1}));
  EXPECT_EQ(scalars_of(looked_up("Lima\r\nBerlin")), Indices({2, 1}));
  EXPECT_EQ(scalars_of(looked_up(" Lima\nBerlin \n")), Indices({0, 0}));
}

// Regression: the byte order mark was part of the first token, and "\r" of the last one.
TEST_F(VocabularyFile, MayComeFromWindows) {
  const std::string mark(kByteOrderMark);
  EXPECT_EQ(scalars_of(looked_up(mark + "Lima\r\nBerlin\r")), Indices({2, 1}));
  EXPECT_EQ(scalars_of(looked_up("Lima\n" + mark + "Berlin")), Indices({0, 1}));
  EXPECT_THAT(error_with(mark).message(), HasSubstr("got an empty line as number 0"));
}

// tf.lookup.TextFileInitializer refuses each of these files, too.
TEST_F(VocabularyFile, IsRefusedWhereARunStarts) {
  EXPECT_THAT(error_with("").message(),
              HasSubstr("expected at least one token in vocabulary file"));
  EXPECT_THAT(error_with("a\nb\na\n").message(),
              AllOf(HasSubstr("expected different tokens in vocabulary file"),
                    HasSubstr("got 'a' as number 0 and as number 2")));
  EXPECT_THAT(error_with("a\n\nb\n").message(), HasSubstr("got an empty line as number 1"));
}

TEST_F(VocabularyFile, ThatIsMissingIsNotFound) {
  const Dataset dataset = cities().map(lookup({}, {.file = directory_.file("none")}));
  const Error error = error_of([&] { dataset.iterator(); });
  EXPECT_EQ(error.code(), ErrorCode::not_found);
  EXPECT_THAT(error.message(), HasSubstr("none"));
}

TEST_F(VocabularyFile, IsOpenedOnlyBelowTheDataDirectories) {
  const Dataset dataset = shipped(looked_up("Lima\nBerlin\n"));
  const auto run = [&](const std::string& directory) {
    return dataset.iterator({.data_dirs = std::vector<std::string>{directory}});
  };
  EXPECT_EQ(error_of([&] { run(directory_.file("below")); }).code(), ErrorCode::permission_denied);
  Iterator allowed = run(directory_.path());
  EXPECT_THAT(drain(allowed), ElementsAre("2", "1"));
}

TEST_F(VocabularyFile, IsReadOnceForAllRunsOfADataset) {
  const Dataset dataset = looked_up("Lima\nBerlin\n");
  EXPECT_EQ(scalars_of(dataset), Indices({2, 1}));
  directory_.write("v", "Berlin\n");
  EXPECT_EQ(scalars_of(dataset), Indices({2, 1}));
}

}  // namespace
}  // namespace cohort::data
