// SPDX-License-Identifier: Apache-2.0
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>

#include "cohort/data/field_function.h"
#include "cohort/data/graph/dataset_op_suite.h"
#include "cohort/data/graph/node.h"

namespace cohort::data {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

INSTANTIATE_TEST_SUITE_P(
    Batch, DatasetOp,
    ::testing::Values(
        DatasetOpCase{"Rows", [] { return rows(10).batch(4); }},
        DatasetOpCase{"Tensors", [] { return tensors(10).batch(4); }},
        DatasetOpCase{"Dropped", [] { return tensors(10).batch(4, {.drop_remainder = true}); }},
        DatasetOpCase{"Parallel", [] { return tensors(5).batch(2, {.num_parallel_calls = 2}); }},
        DatasetOpCase{"OfBatches", [] { return rows(8).batch(2).batch(3); }},
        DatasetOpCase{"Larger", [] { return rows(3).batch(1'000'000'000'000); }}));

// Element i is a vector of i ones.
Dataset growing(std::int64_t count) {
  return rows(count).map([](at::Tensor x) { return at::ones({x.item<std::int64_t>()}); });
}

TEST(Batch, KeepsTheLastShortBatch) {
  EXPECT_THAT(elements_of(rows(5).batch(2)), ElementsAre("[0, 1]", "[2, 3]", "[4]"));
  EXPECT_THAT(elements_of(tensors(5).batch(2)), ElementsAre("[0, 1]", "[2, 3]", "[4]"));
}

TEST(Batch, DropsTheLastShortBatchWhereAsked) {
  EXPECT_THAT(elements_of(rows(5).batch(2, {.drop_remainder = true})),
              ElementsAre("[0, 1]", "[2, 3]"));
  EXPECT_THAT(elements_of(tensors(5).batch(2, {.drop_remainder = true})),
              ElementsAre("[0, 1]", "[2, 3]"));
}

TEST(Batch, HasAStaticSizeOnlyWhereNoBatchIsShort) {
  EXPECT_EQ(rows(4).batch(2).element_spec().to_string(), "int64[?]");
  EXPECT_EQ(rows(4).batch(2, {.drop_remainder = true}).element_spec().to_string(), "int64[2]");
  EXPECT_EQ(rows(4).batch(2).batch(2, {.drop_remainder = true}).element_spec().to_string(),
            "int64[2, ?]");
}

TEST(Batch, CountsItsBatches) {
  EXPECT_EQ(rows(5).batch(2).cardinality(), 3);
  EXPECT_EQ(rows(5).batch(2, {.drop_remainder = true}).cardinality(), 2);
  EXPECT_EQ(rows(5).repeat().batch(2).cardinality(), kInfiniteCardinality);
}

TEST(Batch, StacksEveryField) {
  const Dataset dataset = Dataset::from_tensor_slices(
      Nest::map({{"x", at::arange(6).view({3, 2})}, {"y", at::arange(3)}}));
  EXPECT_THAT(elements_of(dataset.batch(2)),
              ElementsAre("{x: [[0, 1], [2, 3]], y: [0, 1]}", "{x: [[4, 5]], y: [2]}"));
}

TEST(Batch, StacksElementsThatAreNotContiguous) {
  const Dataset dataset =
      Dataset::from_tensor_slices(at::arange(8).view({2, 2, 2})).map([](at::Tensor x) {
        return x.t();
      });
  EXPECT_THAT(elements_of(dataset.batch(2)), ElementsAre("[[[0, 2], [1, 3]], [[4, 6], [5, 7]]]"));
}

TEST(Batch, GrowsBeyondItsFirstAllocation) {
  EXPECT_EQ(elements_of(tensors(10'000).batch(10'000)), elements_of(rows(10'000).batch(10'000)));
}

TEST(Batch, NamesTheElementOfAnotherShape) {
  Iterator iterator = growing(3).batch(3).iterator();
  const Error error = error_of([&] { iterator.try_next(); });
  EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
  EXPECT_THAT(
      error.message(),
      HasSubstr("[0] in field 0 as in the first element, got [1] in element 1 of the batch"));
  EXPECT_FALSE(iterator.try_next().has_value());
}

// If batch() follows map(), an error discards its batch, once, as in tf, which runs the two as one.
TEST(Batch, ReportsAnErrorOfItsMapInPlaceOfItsBatch) {
  EXPECT_THAT(elements_of(failing_at(2, 7).batch(2)),
              ElementsAre("[0, 1]", "error data_loss", "[4, 5]", "[6]"));
  EXPECT_THAT(elements_of(failing_at(3, 5).batch(1)),
              ElementsAre("[0]", "[1]", "[2]", "error data_loss", "[4]"));
}

// Elsewhere the next batch begins after the error.
TEST(Batch, LosesNothingBehindAnError) {
  const auto expected = ElementsAre("[0, 1]", "error data_loss", "[4, 5]", "[6]");
  const auto one_lost = ElementsAre("error data_loss", "[1, 2]", "[3, 4]");
  EXPECT_THAT(elements_of(failing_at(0, 5).take(9).batch(2)), one_lost);
  EXPECT_THAT(elements_of(failing_at(0, 5).prefetch(1).batch(2)), one_lost);
  EXPECT_THAT(elements_of(failing_at(0, 5).skip(0).batch(2)), one_lost);
  EXPECT_THAT(elements_of(failing_at(0, 5).repeat(1).batch(2)), one_lost);
  EXPECT_THAT(elements_of(failing_at(0, 5).batch(2, {.num_parallel_calls = 2})), one_lost);
  EXPECT_THAT(elements_of(failing_at(2, 7).take(9).batch(2)),
              ElementsAre("[0, 1]", "error data_loss", "[3, 4]", "[5, 6]"));
  EXPECT_THAT(elements_of(failing_at(1, 7).take(9).batch(2)),
              ElementsAre("error data_loss", "[2, 3]", "[4, 5]", "[6]"));
  EXPECT_THAT(elements_of(failing_at(2, 7).batch(2)), expected);
  EXPECT_THAT(elements_of(failing_at(2, 7).batch(2).batch(2)),
              ElementsAre("error data_loss", "error invalid_argument"));
}

TEST(Batch, DropsNothingOfUnequalShapesButTheRemainder) {
  const Dataset uneven = rows(3).batch(2);
  const BatchOptions drop{.drop_remainder = true};
  EXPECT_THAT(elements_of(uneven.repeat().batch(4, drop), 2),
              ElementsAre("error invalid_argument", "error invalid_argument"));
  EXPECT_THAT(elements_of(uneven.repeat(2).batch(4, drop)), ElementsAre("error invalid_argument"));
  EXPECT_TRUE(elements_of(uneven.repeat(2).batch(5, drop)).empty());
}

TEST(Batch, DropsARemainderWhateverItsShapes) {
  EXPECT_TRUE(elements_of(rows(5).batch(3).batch(4, {.drop_remainder = true})).empty());
  EXPECT_THAT(elements_of(rows(5).batch(3).batch(2, {.drop_remainder = true})),
              ElementsAre("error invalid_argument"));
}

// Five batches of two, the first of which cannot be.
Dataset first_uneven() {
  std::vector<Nest> items;
  for (const std::int64_t x : {1, 2, 3, 3, 4, 4, 5, 5, 6, 6}) {
    items.emplace_back(at::full({x == 2 ? 2 : 1}, x, at::kLong));
  }
  return generated(items, ElementSpec::tuple({{at::kLong, {{-1}}}})).batch(2);
}

constexpr BatchOptions kDrop{.drop_remainder = true};

TEST(Batch, LosesOneUnevenBatchAndNoMore) {
  const auto batches =
      ElementsAre("error invalid_argument", "[[[3], [3]], [[4], [4]]]", "[[[5], [5]], [[6], [6]]]");
  const auto one_batch =
      ElementsAre("error invalid_argument", "[[[3], [3]], [[4], [4]], [[5], [5]]]");
  const Dataset uneven = first_uneven();
  EXPECT_THAT(elements_of(uneven.batch(3, kDrop)), one_batch);
  EXPECT_THAT(
      elements_of(uneven.unbatch().batch(4, kDrop)),
      ElementsAre("error invalid_argument", "[[3], [3], [4], [4]]", "[[5], [5], [6], [6]]"));
  EXPECT_THAT(elements_of(uneven.take(9).batch(3, kDrop)), one_batch);
  EXPECT_THAT(elements_of(uneven.skip(0).batch(3, kDrop)), one_batch);
  EXPECT_THAT(elements_of(uneven.shard(1, 0).batch(3, kDrop)), one_batch);
  EXPECT_THAT(elements_of(uneven.cache().batch(3, kDrop)), one_batch);
  EXPECT_THAT(elements_of(uneven.prefetch(2).batch(3, kDrop)), one_batch);
  EXPECT_THAT(
      elements_of(
          uneven.filter([](at::Tensor) { return at::ones({}, at::kBool); }).batch(3, kDrop)),
      one_batch);
  const auto whole = [](at::Tensor x) { return Dataset::from_tensors(x); };
  EXPECT_THAT(elements_of(uneven.flat_map(whole).batch(3, kDrop)), one_batch);
  EXPECT_THAT(elements_of(uneven.interleave(whole, {.cycle_length = 1}).batch(3, kDrop)),
              one_batch);
  EXPECT_THAT(elements_of(uneven.batch(2, kDrop)), batches);
}

TEST(Batch, LosesOneUnevenBatchAnEpoch) {
  const std::vector<std::string> epoch{"error invalid_argument",
                                       "[[[3], [3]], [[4], [4]], [[5], [5]]]"};
  EXPECT_THAT(elements_of(first_uneven().repeat(2).batch(3)),
              ElementsAre(epoch[0], epoch[1], epoch[0], epoch[1], "[[[6], [6]]]"));
  EXPECT_THAT(elements_of(first_uneven().repeat(2).batch(3, kDrop)),
              ElementsAre(epoch[0], epoch[1], epoch[0], epoch[1]));
}

// Regression: a later pass over a cache threw the error of a remainder that is dropped.
TEST(Batch, DropsAnUnevenRemainderInEachPassOverACache) {
  const Dataset dataset = rows(25).batch(4).cache().batch(4, kDrop);
  const std::vector<std::string> first = elements_of(dataset);
  EXPECT_EQ(first.size(), 1U);
  EXPECT_EQ(elements_of(dataset), first);
  EXPECT_THAT(elements_of(rows(25).batch(4).cache().batch(7, kDrop).repeat(2)),
              ElementsAre("error invalid_argument", "error invalid_argument"));
}

TEST(Batch, ReportsAnUnevenBatchThroughMapEnumerateAndShuffle) {
  const Dataset uneven = first_uneven();
  EXPECT_THAT(elements_of(uneven.map([](at::Tensor x) { return x; }).batch(3, kDrop)),
              ElementsAre("error invalid_argument"));
  EXPECT_THAT(elements_of(uneven.enumerate().batch(5, kDrop)),
              ElementsAre("error invalid_argument"));
  EXPECT_THAT(elements_of(uneven.shuffle(9, {.seed = 1}).batch(9, kDrop)),
              ElementsAre("error invalid_argument"));
}

TEST(Batch, ReportsAnErrorInTheLastShortBatch) {
  EXPECT_THAT(elements_of(failing_at(4, 5).batch(2)),
              ElementsAre("[0, 1]", "[2, 3]", "error data_loss"));
}

TEST(Batch, RefusesSizesThatAreNone) {
  EXPECT_THAT(error_of([] { rows(3).batch(0); }).message(),
              HasSubstr("[data.batch] expected batch_size > 0, got 0"));
  EXPECT_EQ(error_of([] { rows(3).batch(-2); }).code(), ErrorCode::invalid_argument);
}

TEST(Batch, NamesFieldShapesAndElement) {
  const std::vector<Nest> items{at::ones({3}), at::ones({3}), at::ones({4}), at::ones({4})};
  const Dataset dataset = generated(items, ElementSpec::tuple({{at::kFloat, {{-1}}}}));
  Iterator iterator = dataset.batch(3).iterator();
  const std::string message = error_of([&] { iterator.try_next(); }).message();
  for (const char* part : {"field 0", "[3]", "element 2", "[4]"}) {
    EXPECT_THAT(message, HasSubstr(part));
  }
  EXPECT_EQ(show(*iterator.try_next()), "[[1, 1, 1, 1]]");
}

// The message counted the fields, where that of padded_batch() has the key.
TEST(Batch, NamesTheFieldOfANestAsPaddedBatchDoes) {
  const auto element = [](std::int64_t length) {
    return Nest::map({{"a", at::ones({2})}, {"b", Nest::list({at::ones({}), at::ones({length})})}});
  };
  ElementSpec spec = ElementSpec::of(element(3));
  spec.fields[2].sizes = {-1};
  const Dataset uneven = generated({element(3), element(4)}, spec);
  for (const Dataset& elements : {uneven, uneven.batch(1).unbatch()}) {
    Iterator iterator = elements.batch(2).iterator();
    EXPECT_THAT(error_of([&] { iterator.try_next(); }).message(),
                HasSubstr(" in field 2, ['b'][1] as in the first element, got "));
  }
}

// It named strings: the lookup runs on the batch, and its field was of strings before.
TEST(Batch, NamesNoDtypeOfAFieldThatIsMappedLater) {
  const Dataset tokens = Dataset::from_tensor_slices(StringTensor({2}, {"a b c", "a"}))
                             .map(split(FieldPath()))
                             .map(lookup(FieldPath(), {.tokens = {"a", "b"}}));
  EXPECT_EQ(tokens.element_spec().to_string(), "int64[?]");
  Iterator iterator = tokens.batch(2).iterator();
  const Error error = error_of([&] { iterator.try_next(); });
  EXPECT_THAT(error.message(),
              HasSubstr("[3] in field 0 as in the first element, got [1] in element 1"));
  EXPECT_THAT(error.message(), HasSubstr("use padded_batch() in place of batch()"));
  EXPECT_THAT(error.what(), HasSubstr("while batching int64[?]"));
  EXPECT_THAT(error.what(), ::testing::Not(HasSubstr("string")));
}

TEST(Batch, NamesBothDtypesWhereTheyDiffer) {
  const Dataset mixed =
      rows(4).map([](at::Tensor x) { return x.item<std::int64_t>() == 1 ? x.to(at::kFloat) : x; },
                  {.output_spec = ElementSpec::tuple({{at::kLong, {{}}}})});
  Iterator iterator = mixed.batch(2).iterator();
  EXPECT_THAT(error_of([&] { iterator.try_next(); }).message(),
              HasSubstr("int64[] in field 0 as in the first element, got float32[] in element 1"));
}

TEST(Batch, StacksStrings) {
  const Dataset names = Dataset::from_tensor_slices(StringTensor({3}, {"a", "bb", ""}));
  const Dataset elements = generated({"x", "yy"}, names.element_spec());
  EXPECT_THAT(elements_of(names.batch(2)), ElementsAre("['a', 'bb']", "['']"));
  EXPECT_THAT(elements_of(elements.batch(2).batch(1)), ElementsAre("[['x', 'yy']]"));
  EXPECT_EQ(names.batch(2).element_spec().to_string(), "string[?]");
}

TEST(Batch, MayBeAParallelOne) {
  const Dataset dataset = rows(5).batch(2, {.num_parallel_calls = kAutotune});
  EXPECT_THAT(elements_of(dataset), ElementsAre("[0, 1]", "[2, 3]", "[4]"));
  EXPECT_EQ(dataset.node()->op(), "parallel_batch");
  EXPECT_EQ(shipped(dataset).node()->attributes().at("num_parallel_calls").integer(), kAutotune);
  EXPECT_EQ(error_of([] { rows(5).batch(2, {.num_parallel_calls = -2}); }).code(),
            ErrorCode::invalid_argument);
}

}  // namespace
}  // namespace cohort::data
