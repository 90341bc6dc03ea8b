// SPDX-License-Identifier: Apache-2.0
#include <ATen/ops/arange.h>
#include <gmock/gmock.h>

#include <algorithm>

#include "cohort/data/auto_shard.h"
#include "cohort/data/field_function.h"
#include "cohort/data/files/file_fixture.h"
#include "cohort/data/graph/dataset_op_suite.h"

namespace cohort::data {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

Dataset people() {
  return Dataset::from_tensor_slices(Nest::map(
      {{"age", StringTensor({5}, {"1", "22", "x", "4", "55"})},
       {"home", Nest::tuple({at::arange(5), StringTensor({5}, {"A", "b", "A", "C", "b"})})}}));
}

FieldFunction home_lookup() { return lookup({"home", 1}, {.tokens = {"A", "b"}}); }

const ScratchDirectory& vocabulary_directory() {
  static const ScratchDirectory directory;
  return directory;
}

INSTANTIATE_TEST_SUITE_P(
    MapField, DatasetOp,
    ::testing::Values(
        DatasetOpCase{"Lookup", [] { return people().map(home_lookup()); }},
        DatasetOpCase{
            "Integers",
            [] {
              return people().map(lookup({"home", 0}, {.integers = {3, 1}, .mask_token = 4}));
            }},
        DatasetOpCase{"File",
                      [] {
                        return people().map(
                            lookup({"home", 1}, {.file = vocabulary_directory().write("v", "A\n"),
                                                 .num_oov_indices = 3,
                                                 .mask_token = "C"}));
                      }},
        DatasetOpCase{"ThenBatch", [] { return people().map(home_lookup()).batch(2); }},
        DatasetOpCase{
            "Parallel",
            [] { return people().map(home_lookup(), {.num_parallel_calls = 2}).batch(2); }},
        DatasetOpCase{"OfBatches", [] { return people().batch(2).map(home_lookup()); }},
        DatasetOpCase{
            "Hash",
            [] { return people().batch(2).map(to_hash_bucket_fast("age", {.num_buckets = 10})); }},
        DatasetOpCase{"Number",
                      [] {
                        return people()
                            .batch(2, {.drop_remainder = true})
                            .take(1)
                            .map(to_number("age", {.dtype = at::kLong}));
                      }},
        DatasetOpCase{"Split", [] { return people().map(split("age", {.separator = "2"})); }},
        DatasetOpCase{"Lower", [] {
                        return people().map(lower({"home", 1}));
                      }}));

TEST(MapField, ReplacesOneFieldAndKeepsTheOthers) {
  const Dataset mapped = people().take(2).map(home_lookup());
  EXPECT_THAT(elements_of(mapped),
              ElementsAre("{age: '1', home: (0, 1)}", "{age: '22', home: (1, 2)}"));
  EXPECT_EQ(mapped.element_spec().to_string(), "{age: string[], home: (int64[], int64[])}");
}

TEST(MapField, TakesColumnsOfACsvFile) {
  const ScratchDirectory directory;
  const StringTensor file(directory.write("c.csv", "Lima,1\nRome,2\n"));
  const Dataset rows = Dataset::csv(file, {.columns = {{kString}, {kString}}})
                           .batch(2)
                           .map(lookup(0, {.tokens = {"Rome"}}))
                           .map(to_number(1));
  EXPECT_THAT(elements_of(rows), ElementsAre("([0, 1], [1, 2])"));
  EXPECT_EQ(rows.element_spec().to_string(), "(int64[?], float32[?])");
}

TEST(MapField, IsTheSameBeforeAndBehindABatch) {
  EXPECT_EQ(elements_of(people().map(home_lookup()).batch(2)),
            elements_of(people().batch(2).map(home_lookup())));
}

// As of any map: tf runs a map and its batch as one op.
TEST(MapField, AnErrorCostsTheBatchBehindIt) {
  const Dataset numbers = people().map(to_number("age", {.dtype = at::kLong})).batch(2);
  EXPECT_THAT(elements_of(numbers),
              ElementsAre("{age: [1, 22], home: ([0, 1], ['A', 'b'])}", "error invalid_argument",
                          "{age: [55], home: ([4], ['b'])}"));
}

TEST(MapField, KnowsItsSpecItself) {
  EXPECT_THAT(error_of([] {
                people().map(lower("age"), {.output_spec = people().element_spec()});
              }).message(),
              HasSubstr("[data.map_field] expected no .output_spec"));
}

TEST(MapField, NamesTheFieldThatIsNotThere) {
  const auto said = [](FieldPath field) {
    return error_of([&] { people().map(lower(field)); }).message();
  };
  EXPECT_THAT(said("city"),
              HasSubstr("[data.lower] expected a field 'city' in the element, got {age: string[], "
                        "home: (int64[], string[])}, which has no 'city' there"));
  EXPECT_THAT(said({"home", 2}),
              AllOf(HasSubstr("a field ['home'][2] in"), HasSubstr("no 2 there")));
  EXPECT_THAT(said("home"), HasSubstr("expected one field as field 'home', got several in {"));
  EXPECT_THAT(said({}), HasSubstr("expected elements of one field, got {"));
  EXPECT_THAT(said({"home", 0}), HasSubstr("expected strings in field ['home'][0], got int64[]"));
}

// The error for a path into an element that is one string did not tell which path to write.
TEST(MapField, SaysWhatMayStandInAPath) {
  const auto said = [](const Dataset& dataset, FieldPath field) {
    return error_of([&] { dataset.map(split(field)); }).message();
  };
  EXPECT_THAT(said(Dataset::from_tensors(StringTensor("a b")), 1),
              HasSubstr("got string[], which has no 1 there; it is one tensor without parts: write "
                        "{} for the field, as in split({})"));
  EXPECT_THAT(said(people(), "city"), HasSubstr("no 'city' there; its keys are 'age', 'home'"));
  EXPECT_THAT(said(people(), "hone"), HasSubstr("'age', 'home'; did you mean 'home'?"));
  EXPECT_THAT(said(people(), {"home", -1}), HasSubstr("no -1 there; its positions are 0 to 1"));
  EXPECT_THAT(said(people(), {"age", 0}),
              HasSubstr("no 0 there; it is one tensor there: leave this step out"));
  EXPECT_THAT(said(people(), {"home", 0}),
              HasSubstr("got int64[]; name a field of strings, such as a column of dtype kString"));
  const auto pairs = Dataset::from_tensors(Nest::tuple({StringTensor("a"), StringTensor("b")}));
  EXPECT_THAT(said(pairs, std::size_t{0} - 1),
              HasSubstr("a field -1 in the element, got (string[], string[]), which has no -1"));
}

TEST(MapField, TakesTheOnlyFieldOfAnElement) {
  EXPECT_THAT(
      elements_of(
          Dataset::from_tensor_slices(Nest::tuple({StringTensor({1}, {"A"})})).map(lower({}))),
      ElementsAre("('a')"));
}

// Where the specs are not known when the graph is built, the elements decide.
TEST(MapField, FindsItsFieldWhereItRuns) {
  const auto is_ready = std::make_shared<bool>(false);
  const Dataset numbers = Dataset::range(2).map([is_ready](at::Tensor x) {
    COHORT_CHECK(*is_ready, ErrorCode::unavailable, "not now");
    return Nest::map({{"n", x}});
  });
  const Dataset found = numbers.map(lookup("n", {.integers = {1}}));
  const Dataset not_found = numbers.map(lookup("m", {.integers = {1}}));
  *is_ready = true;
  EXPECT_THAT(elements_of(found), ElementsAre("{n: 0}", "{n: 1}"));
  Iterator iterator = not_found.iterator();
  EXPECT_THAT(error_of([&] { iterator.get_next(); }).message(), HasSubstr("has no 'm' there"));
}

TEST(MapField, KeepsTheShardsOfItsFiles) {
  const ScratchDirectory directory;
  const std::vector<std::string> files{directory.write("a", "x\ny\n"), directory.write("b", "z\n")};
  const Dataset lines = Dataset::text_line(Dataset::from_tensor_slices(StringTensor(files)))
                            .map(lookup({}, {.tokens = {"x", "y", "z"}}));
  EXPECT_THAT(elements_of(auto_shard(lines, {.num_workers = 2, .index = 1})), ElementsAre("3"));
}

TEST(MapField, ShipsInsideADatasetFunction) {
  const ScratchDirectory directory;
  const std::vector<std::string> files{directory.write("a", "x\ny\n"), directory.write("b", "z\n")};
  const Dataset lines =
      Dataset::from_tensor_slices(StringTensor(files)).flat_map([](StringTensor file) {
        return Dataset::text_line(file).map(lookup({}, {.tokens = {"x", "z"}}));
      });
  EXPECT_THAT(elements_of(lines), ElementsAre("1", "0", "2"));
  EXPECT_THAT(elements_of(shipped(lines)), ElementsAre("1", "0", "2"));
}

TEST(MapField, AFunctionThatThisBuildLacksIsNamed) {
  const Dataset dataset = people().map(lower("age"));
  Bytes bytes = dataset.serialize();
  const std::string name = "lower";
  const auto found = std::search(bytes.begin(), bytes.end(), name.begin(), name.end(),
                                 [](std::byte a, char b) { return static_cast<char>(a) == b; });
  ASSERT_NE(found, bytes.end());
  *found = std::byte{'t'};
  EXPECT_THAT(error_of([&] { Dataset::deserialize(bytes); }).message(), HasSubstr("'tower'"));
}

}  // namespace
}  // namespace cohort::data
