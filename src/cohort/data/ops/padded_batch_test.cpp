// SPDX-License-Identifier: Apache-2.0
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/tensor.h>
#include <gmock/gmock.h>

#include "cohort/data/graph/dataset_op_suite.h"

namespace cohort::data {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Element x is x times x.
Dataset vectors(std::vector<std::int64_t> lengths) {
  return Dataset::from_tensor_slices(at::tensor(lengths)).map([](at::Tensor element) {
    const auto x = element.item<std::int64_t>();
    return at::full({x}, x, at::kLong);
  });
}

Dataset words() {
  return rows(3).map([](at::Tensor element) {
    const auto x = element.item<std::int64_t>();
    return StringTensor({x}, std::vector<std::string>(static_cast<std::size_t>(x), "w"));
  });
}

Nest shape(Nest::Items sizes) { return Nest::list(std::move(sizes)); }

INSTANTIATE_TEST_SUITE_P(
    PaddedBatch, DatasetOp,
    ::testing::Values(DatasetOpCase{"Longest",
                                    [] {
                                      return vectors({1, 3, 2}).padded_batch(2);
                                    },
                                    false},
                      DatasetOpCase{"Scalars", [] { return rows(5).padded_batch(2); }},
                      DatasetOpCase{"FixedOfANest",
                                    [] {
                                      return Dataset::from_tensor_slices(
                                                 Nest::map({{"x", at::tensor({1, 2, 3})},
                                                            {"y", at::full({3, 2}, 7)}}))
                                          .padded_batch(2,
                                                        {.padded_shapes = Nest::map(
                                                             {{"x", shape({})}, {"y", shape({4})}}),
                                                         .padding_values = -1,
                                                         .drop_remainder = true});
                                    }},
                      DatasetOpCase{"Strings", [] { return words().padded_batch(2); }, false}));

TEST(PaddedBatch, PadsToTheLongestOfEachBatch) {
  EXPECT_THAT(elements_of(vectors({1, 3, 2}).padded_batch(2)),
              ElementsAre("[[1, 0, 0], [3, 3, 3]]", "[[2, 2]]"));
}

TEST(PaddedBatch, PadsToTheGivenShape) {
  EXPECT_THAT(elements_of(vectors({1, 2, 3}).padded_batch(2, {.padded_shapes = shape({4})})),
              ElementsAre("[[1, 0, 0, 0], [2, 2, 0, 0]]", "[[3, 3, 3, 0]]"));
}

TEST(PaddedBatch, PadsEveryDimensionWithTheGivenValue) {
  const Dataset matrices = rows(2).map([](at::Tensor element) {
    const auto x = element.item<std::int64_t>();
    return at::full({x + 1, 2 - x}, x, at::kLong);
  });
  EXPECT_THAT(elements_of(matrices.padded_batch(2, {.padding_values = 9})),
              ElementsAre("[[[0, 0], [9, 9]], [[1, 9], [1, 9]]]"));
}

TEST(PaddedBatch, PadsStrings) {
  EXPECT_THAT(elements_of(words().padded_batch(3)),
              ElementsAre("[['', ''], ['w', ''], ['w', 'w']]"));
  EXPECT_THAT(
      elements_of(words().padded_batch(2, {.padded_shapes = shape({2}), .padding_values = "?"})),
      ElementsAre("[['?', '?'], ['w', '?']]", "[['w', 'w']]"));
}

TEST(PaddedBatch, TakesAShapeAndAValueForEachField) {
  const Dataset dataset = rows(2).map([](at::Tensor element) {
    const auto x = element.item<std::int64_t>();
    return Nest::map({{"a", at::full({x}, x, at::kLong)},
                      {"b", Nest::tuple({at::full({x + 1}, 0.5, at::kFloat),
                                         at::scalar_tensor(x, at::kLong)})}});
  });
  const PaddedBatchOptions options{
      .padded_shapes = Nest::map({{"a", shape({2})}, {"b", Nest::tuple({shape({-1}), shape({})})}}),
      .padding_values =
          Nest::map({{"a", 7}, {"b", Nest::tuple({at::scalar_tensor(1.5, at::kFloat), Nest()})}})};
  EXPECT_THAT(elements_of(dataset.padded_batch(2, options)),
              ElementsAre("{a: [[7, 7], [1, 7]], b: ([[0.5, 1.5], [0.5, 0.5]], [0, 1])}"));
}

// {a: x times x, b: (x + 1 words, x)}
Dataset nested() {
  return rows(2).map([](at::Tensor element) {
    const auto x = element.item<std::int64_t>();
    const auto words = static_cast<std::size_t>(x + 1);
    return Nest::map(
        {{"a", at::full({x}, x, at::kLong)},
         {"b", Nest::tuple({StringTensor({x + 1}, std::vector<std::string>(words, "w")),
                            at::scalar_tensor(x, at::kLong)})}});
  });
}

std::string padded_to(const Nest& shapes, const Nest& values = {}) {
  return elements_of(nested().padded_batch(2, {.padded_shapes = shapes, .padding_values = values}))
      .at(0);
}

// Shapes were lists of numbers alone: neither a vector nor null for -1, as tf has them, nor a list
// beside a tuple.
TEST(PaddedBatch, TakesShapesAsTheyAreWrittenInTf) {
  const std::string all = "{a: [[0, 0], [1, 0]], b: ([['w', ''], ['w', 'w']], [0, 1])}";
  const Nest null;
  const Nest vector = at::full({1}, 2, at::kInt);
  EXPECT_EQ(padded_to(Nest::map({{"a", vector}, {"b", Nest::tuple({shape({null}), shape({})})}})),
            all);
  EXPECT_EQ(padded_to(Nest::map({{"a", Nest::tuple({2})}, {"b", Nest::list({shape({-1}), null})}})),
            all);
  EXPECT_EQ(padded_to(Nest::map({{"a", shape({2})}, {"b", null}})), all);
  EXPECT_EQ(padded_to(Nest::map({{"a", shape({2})}, {"b", Nest::list({null, null})}})), all);
}

TEST(PaddedBatch, TakesAValueForAPartOfTheStructure) {
  const Nest shapes = Nest::map({{"a", shape({1})}, {"b", Nest::tuple({shape({3}), shape({})})}});
  EXPECT_EQ(padded_to(shapes, Nest::map({{"a", 7}, {"b", Nest::tuple({"?", Nest()})}})),
            "{a: [[7], [1]], b: ([['w', '?', '?'], ['w', 'w', '?']], [0, 1])}");
  EXPECT_EQ(padded_to(shapes, Nest::map({{"a", Nest()}, {"b", Nest::list({"?", 5})}})),
            "{a: [[0], [1]], b: ([['w', '?', '?'], ['w', 'w', '?']], [0, 1])}");
}

// Messages named fields by their number alone.
TEST(PaddedBatch, NamesThePathOfAField) {
  const auto message = [](const Nest& shapes, const Nest& values) {
    return std::string(error_of([&] { padded_to(shapes, values); }).what());
  };
  const auto shapes = [](Nest words) {
    return Nest::map({{"a", Nest()}, {"b", Nest::tuple({std::move(words), Nest()})}});
  };
  EXPECT_THAT(message(shapes(shape({2, 2})), {}),
              HasSubstr("a padded shape of 1 dimensions for field 1, ['b'][0], string["));
  EXPECT_THAT(message(shapes(shape({-2})), {}),
              HasSubstr("sizes >= -1 in the padded shape of field 1, ['b'][0], got [-2]"));
  EXPECT_THAT(message(shapes("x"), {}),
              HasSubstr("a list of integers in padded_shapes for field 1, ['b'][0], got text"));
  EXPECT_THAT(message({}, -1), HasSubstr("the padding value of field 1, ['b'][0]"));
  EXPECT_THAT(
      message(Nest::map({{"a", Nest()}, {"b", shape({shape({1}), shape({}), 1})}}), {}),
      HasSubstr("padded_shapes in the structure of the elements, (int, int) at ['b'], got"));
  EXPECT_THAT(message(Nest::map({{"a", Nest()}}), {}),
              HasSubstr("expected padded_shapes for 'b', got none"));
  EXPECT_THAT(message({}, Nest::map({{"a", 1}, {"b", Nest()}, {"c", 1}})),
              HasSubstr("expected padding_values in the structure of the elements"));
  Iterator tight = nested().padded_batch(2, {.padded_shapes = shapes(shape({1}))}).iterator();
  EXPECT_THAT(
      error_of([&] { tight.get_next(); }).message(),
      HasSubstr("fit the padded shape [1] of field 1, ['b'][0], got string[2] in element 1"));
}

TEST(PaddedBatch, KnowsTheSizesThatItsInputKnows) {
  const Dataset rows = Dataset::from_tensor_slices(at::arange(6).view({3, 2}));
  EXPECT_EQ(rows.padded_batch(2).element_spec().to_string(), "int64[?, 2]");
  EXPECT_EQ(rows.padded_batch(2, {.padded_shapes = shape({-1})}).element_spec().to_string(),
            "int64[?, ?]");
}

TEST(PaddedBatch, LosesNothingBehindAnError) {
  EXPECT_THAT(elements_of(failing_at(2, 6).padded_batch(2)),
              ElementsAre("[0, 1]", "error data_loss", "[3, 4]", "[5]"));
}

TEST(PaddedBatch, ReportsElementsThatAreTooLongInPlaceOfTheirBatch) {
  EXPECT_THAT(elements_of(vectors({6, 5, 5, 5, 5}).padded_batch(4, {.padded_shapes = shape({5})})),
              ElementsAre("error data_loss", "[[5, 5, 5, 5, 5]]"));
  Iterator iterator = vectors({1, 3}).padded_batch(2, {.padded_shapes = shape({2})}).iterator();
  EXPECT_THAT(
      error_of([&] { iterator.get_next(); }).message(),
      HasSubstr(
          "expected elements that fit the padded shape [2] of field 0, got int64[3] in element 1"));
}

// The message had the number of a tuple's field twice, and the remedy did not mention cutting.
TEST(PaddedBatch, SaysWhatIsTooLongAndWhatToDo) {
  const Dataset pairs = rows(3).map([](at::Tensor element) {
    return std::make_tuple(element, at::full({element.item<std::int64_t>()}, 1, at::kLong));
  });
  Iterator iterator =
      pairs.padded_batch(3, {.padded_shapes = Nest::tuple({shape({}), shape({1})})}).iterator();
  const Error error = error_of([&] { iterator.get_next(); });
  EXPECT_EQ(error.code(), ErrorCode::data_loss);
  EXPECT_THAT(error.message(),
              HasSubstr("fit the padded shape [1] of field 1, got int64[2] in element 2 of the "
                        "batch: 2 in dimension 0, where at most 1 fit; cut the elements, give a "
                        "larger shape, or -1"));
}

TEST(PaddedBatch, ReportsElementsOfAnotherRank) {
  const Dataset dataset = rows(2).map([](at::Tensor element) {
    const auto x = element.item<std::int64_t>();
    return x == 0 ? at::full({1}, x, at::kLong) : at::full({1, 1}, x, at::kLong);
  });
  EXPECT_THAT(elements_of(dataset.padded_batch(2, {.padded_shapes = shape({-1})})),
              ElementsAre("error invalid_argument"));
}

TEST(PaddedBatch, KnowsItsSpec) {
  const auto spec = [](const Dataset& dataset) { return dataset.element_spec().to_string(); };
  EXPECT_EQ(spec(rows(5).padded_batch(2)), "int64[?]");
  EXPECT_EQ(spec(rows(5).padded_batch(2, {.drop_remainder = true})), "int64[2]");
  EXPECT_EQ(spec(vectors({1, 2}).padded_batch(2, {.padded_shapes = shape({4})})), "int64[?, 4]");
  EXPECT_EQ(spec(vectors({2, 2}).padded_batch(2, {.drop_remainder = true})), "int64[2, 2]");
}

TEST(PaddedBatch, CountsItsBatches) {
  EXPECT_EQ(rows(5).padded_batch(2).cardinality(), 3);
  EXPECT_EQ(rows(5).padded_batch(2, {.drop_remainder = true}).cardinality(), 2);
  EXPECT_EQ(rows(5).repeat().padded_batch(2).cardinality(), kInfiniteCardinality);
}

TEST(PaddedBatch, RefusesWhatDoesNotFitItsElements) {
  const auto message = [](std::int64_t size, const PaddedBatchOptions& options) {
    return error_of([&] { vectors({3, 3}).padded_batch(size, options); }).message();
  };
  EXPECT_THAT(message(0, {}), HasSubstr("[data.padded_batch] expected batch_size > 0, got 0"));
  EXPECT_THAT(
      message(2, {.padded_shapes = shape({2, 2})}),
      HasSubstr("expected a padded shape of 1 dimensions for field 0, int64[3], got [2, 2]"));
  EXPECT_THAT(message(2, {.padded_shapes = shape({2})}),
              HasSubstr("expected a padded shape that elements int64[3] of field 0 fit, got [2]"));
  EXPECT_THAT(message(2, {.padded_shapes = shape({-2})}), HasSubstr("expected sizes >= -1"));
  EXPECT_THAT(message(2, {.padded_shapes = Nest::tuple({shape({3}), shape({3})})}),
              HasSubstr("expected a list of integers in padded_shapes for field 0"));
  EXPECT_THAT(message(2, {.padding_values = at::scalar_tensor(0.5, at::kFloat)}),
              HasSubstr("expected a scalar int64 as the padding value of field 0, got float32[]"));
  const Dataset bytes = Dataset::range(3, {.dtype = at::kByte}).batch(2);
  EXPECT_THAT(error_of([&] { bytes.padded_batch(2, {.padding_values = 300}); }).message(),
              HasSubstr("expected a padding value that fits uint8, got 300"));
  EXPECT_THAT(message(2, {.padding_values = Nest::tuple({1, 2})}),
              HasSubstr("expected a scalar int64 as the padding value"));
}

}  // namespace
}  // namespace cohort::data
