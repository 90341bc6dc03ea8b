// SPDX-License-Identifier: Apache-2.0
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>

#include "cohort/data/graph/dataset_op_suite.h"

namespace cohort::data {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Dataset repeated(std::int64_t x) {
  return Dataset::from_tensor_slices(at::full({x}, x, at::kLong));
}

INSTANTIATE_TEST_SUITE_P(
    FlatMap, DatasetOp,
    ::testing::Values(
        DatasetOpCase{"Rows", [] { return rows(5).flat_map(&repeated); }, false},
        DatasetOpCase{"Tensors", [] { return tensors(5).flat_map(&repeated); }, false},
        DatasetOpCase{"Repeated", [] { return rows(4).flat_map(&repeated).repeat(2).batch(3); },
                      false},
        DatasetOpCase{"Shuffled",
                      [] {
                        return rows(3).flat_map([](std::int64_t x) {
                          return Dataset::range(4, {.start = 4 * x}).shuffle(3, {.seed = 5});
                        });
                      },
                      false},
        DatasetOpCase{"Nested",
                      [] {
                        return rows(4).flat_map([](std::int64_t x) {
                          return Dataset::range(x).flat_map(&repeated).prefetch(1);
                        });
                      },
                      false},
        DatasetOpCase{.name = "Nothing",
                      .make = [] { return rows(0).flat_map(&repeated); },
                      .can_ship = false,
                      .is_empty = true}));

TEST(FlatMap, YieldsOneDatasetAfterTheOther) {
  EXPECT_THAT(scalars_of(rows(5).flat_map(&repeated)), ElementsAre(1, 2, 2, 3, 3, 3, 4, 4, 4, 4));
}

TEST(FlatMap, TakesTheFieldsOfAnElement) {
  const Dataset pairs =
      Dataset::from_tensor_slices(Nest::tuple({at::arange(1, 3), at::arange(2) + 10}));
  const Dataset dataset = pairs.flat_map([](std::int64_t count, at::Tensor x) {
    return Dataset::range(count).map([x](at::Tensor i) { return std::make_tuple(i, x); });
  });
  EXPECT_THAT(elements_of(dataset), ElementsAre("(0, 10)", "(0, 11)", "(1, 11)"));
}

TEST(FlatMap, TakesSlicesOfItsElement) {
  const Dataset dataset =
      Dataset::from_tensor_slices(at::arange(4).view({2, 2})).flat_map([](at::Tensor x) {
        return Dataset::from_tensor_slices(x);
      });
  EXPECT_THAT(scalars_of(dataset), ElementsAre(0, 1, 2, 3));
  EXPECT_EQ(dataset.element_spec().to_string(), "int64[]");
}

TEST(FlatMap, KnowsTheSpecOfWhatItsDatasetsShare) {
  const Dataset dataset = rows(4).flat_map(
      [](std::int64_t x) { return Dataset::range(6).batch(x + 1, {.drop_remainder = true}); });
  EXPECT_EQ(dataset.element_spec().to_string(), "int64[?]");
  EXPECT_EQ(rows(0).flat_map(&repeated).element_spec().to_string(), "int64[]");
}

TEST(FlatMap, CountsNothing) {
  EXPECT_EQ(rows(5).flat_map(&repeated).cardinality(), kUnknownCardinality);
  EXPECT_EQ(rows(5).repeat().flat_map(&repeated).cardinality(), kUnknownCardinality);
}

TEST(FlatMap, ReportsErrorsOfItsInputFunctionAndDatasetsInTheirPlace) {
  const auto fail_at = [](std::int64_t bad) {
    return [bad](at::Tensor element) {
      const auto x = element.item<std::int64_t>();
      COHORT_CHECK(x != bad, ErrorCode::data_loss, "bad");
      return at::full({}, x, at::kLong);
    };
  };
  const Dataset dataset = rows(5).map(Function(fail_at(1))).flat_map([&](std::int64_t x) {
    COHORT_CHECK(x != 3, ErrorCode::out_of_range, "no dataset");
    return Dataset::range(x).map(Function(fail_at(2)));
  });
  EXPECT_THAT(elements_of(dataset),
              ElementsAre("error data_loss", "0", "1", "error invalid_argument", "0", "1",
                          "error data_loss", "3"));
}

TEST(FlatMap, NamesTheElementWhoseDatasetCannotBeMade) {
  Iterator iterator =
      rows(3)
          .flat_map([](std::int64_t x) { return Dataset::range(4).shard(2, x == 1 ? 7 : 0); })
          .iterator();
  EXPECT_EQ(drain(iterator, 2).size(), 2);
  EXPECT_THAT(error_of([&] { iterator.get_next(); }).what(),
              HasSubstr("opening the dataset of element 1 of flat_map"));
}

TEST(FlatMap, OfNothingIsEmptyThoughASizeIsUnknown) {
  const auto slices = [](at::Tensor x) { return Dataset::from_tensor_slices(x); };
  const Dataset nothing = rows(0).batch(2).flat_map(slices);
  EXPECT_EQ(nothing.element_spec().to_string(), "int64[]");
  EXPECT_TRUE(elements_of(nothing).empty());
  EXPECT_TRUE(elements_of(rows(3).batch(2).skip(9).interleave(slices, {})).empty());
}

TEST(FlatMap, KnowsNoSizeThatItsExamplesHaveByChance) {
  const auto whole = [](at::Tensor x) { return Dataset::from_tensors(x); };
  const auto empty_first = rows(2).map([](at::Tensor x) { return at::zeros({x.item().toLong()}); },
                                       {.output_spec = ElementSpec::tuple({{at::kFloat, {{-1}}}})});
  EXPECT_EQ(empty_first.flat_map(whole).element_spec().to_string(), "float32[?]");
  const auto whole_text = [](StringTensor x) { return Dataset::from_tensors(x); };
  const Dataset text = Dataset::from_tensor_slices(StringTensor({3}, {"a", "b", "c"}));
  EXPECT_EQ(text.batch(3).batch(2).flat_map(whole_text).element_spec().to_string(), "string[?, ?]");
}

at::Tensor all(at::Tensor) { return at::ones({}, at::kBool); }

Dataset none(at::Tensor) {
  Dataset dataset = rows(1);
  const Dataset other = std::move(dataset);
  return dataset;  // NOLINT(bugprone-use-after-move)
}

TEST(FlatMap, RefusesAFunctionThatReturnsNoDatasetWhenItIsBuilt) {
  const Error error = error_of([] { rows(3).flat_map(&none); });
  EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
  EXPECT_THAT(error.message(),
              HasSubstr("[data.dataset_function] expected the function to return a dataset"));
  EXPECT_THAT(error.what(), HasSubstr("trying the function of flat_map"));
  EXPECT_EQ(error_of([] { rows(3).interleave(&none); }).code(), ErrorCode::invalid_argument);
  // If drawing an element runs user code, the function is refused at its first use.
  const Dataset later = rows(3).filter(&all).flat_map(&none);
  EXPECT_EQ(error_of([&] { static_cast<void>(later.element_spec()); }).code(),
            ErrorCode::invalid_argument);
}

TEST(FlatMap, RefusesAFunctionThatTakesNoneOfItsElementsWhenItIsBuilt) {
  const auto slices = [](at::Tensor x) { return Dataset::from_tensor_slices(x); };
  EXPECT_EQ(error_of([&] { rows(3).flat_map(slices); }).code(), ErrorCode::invalid_argument);
  EXPECT_EQ(error_of([&] { rows(3).repeat().interleave(slices); }).code(),
            ErrorCode::invalid_argument);
  const auto batches = [](std::int64_t x) { return Dataset::range(9).batch(x - 3); };
  EXPECT_EQ(elements_of(rows(5).flat_map(batches)).size(), 13);  // four calls fail
}

// Not if there are no elements, and not again in each call of an outer function.
TEST(FlatMap, TriesItsFunctionOnElementsThatThereAreAlone) {
  auto calls = std::make_shared<int>(0);
  const auto counted = [calls](std::int64_t x) {
    ++*calls;
    return Dataset::range(x);
  };
  rows(0).flat_map(counted);
  EXPECT_EQ(*calls, 0);
  rows(3).flat_map(counted);
  EXPECT_EQ(*calls, 1);
  const Dataset nested =
      rows(1).flat_map([&](std::int64_t) { return Dataset::range(2).flat_map(counted); });
  EXPECT_EQ(*calls, 1);
  EXPECT_THAT(scalars_of(nested), ElementsAre(0));
  EXPECT_EQ(*calls, 3);
}

TEST(FlatMap, KnowsNoSizeWhereTheRankOfItsElementIsNotKnown) {
  const auto whole = [](at::Tensor x) { return Dataset::from_tensors(x); };
  const auto slices = [](at::Tensor x) { return Dataset::from_tensor_slices(x); };
  const Dataset either = rows(2).concatenate(rows(4).batch(2));
  EXPECT_EQ(either.flat_map(whole).element_spec().to_string(), "int64[...]");
  EXPECT_EQ(either.interleave(whole).element_spec().to_string(), "int64[...]");
  EXPECT_EQ(either.skip(2).flat_map(slices).element_spec().to_string(), "int64[...]");
  EXPECT_EQ(
      either.flat_map([](at::Tensor) { return Dataset::range(3); }).element_spec().to_string(),
      "int64[]");
  const Dataset nothing = generated({}, either.element_spec());
  EXPECT_EQ(nothing.flat_map(whole).element_spec().to_string(), "int64[...]");
  EXPECT_TRUE(elements_of(nothing.flat_map(whole)).empty());
}

TEST(FlatMap, FindsItsSpecWhereNoElementIsKept) {
  const Dataset endless =
      rows(5).repeat().filter([](at::Tensor) { return at::zeros({}, at::kBool); });
  EXPECT_EQ(endless.flat_map(&repeated).element_spec().to_string(), "int64[]");
}

TEST(FlatMap, RefusesDatasetsOfAnotherStructure) {
  const Dataset dataset = rows(2).flat_map([](std::int64_t x) {
    return Dataset::range(1).map([x](at::Tensor i) { return x == 0 ? Nest(i) : Nest::list({i}); });
  });
  EXPECT_THAT(elements_of(dataset), ElementsAre("0", "error invalid_argument"));
}

TEST(FlatMap, MakesDatasetsOfAFunctionWithoutParametersInNoWay) {
  EXPECT_THAT(error_of([] { make_dataset_function([] { return rows(1); }); }).message(),
              HasSubstr("[data.flat_map] expected a function of the element"));
}

}  // namespace
}  // namespace cohort::data
