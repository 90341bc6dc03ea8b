// SPDX-License-Identifier: Apache-2.0
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <gmock/gmock.h>

#include "cohort/data/graph/dataset_op_suite.h"
#include "cohort/function/registry.h"

namespace cohort::data {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

at::Tensor twice(at::Tensor x) { return x * 2; }

Dataset pairs(std::int64_t count) {
  return Dataset::from_tensor_slices(Nest::tuple({at::arange(count), at::arange(count) + 10}));
}

INSTANTIATE_TEST_SUITE_P(
    Map, DatasetOp,
    ::testing::Values(
        DatasetOpCase{"Elements", [] { return rows(5).map(&twice); }},
        DatasetOpCase{"Batches", [] { return rows(7).batch(3).map(&twice); }},
        DatasetOpCase{"Nests",
                      [] {
                        return pairs(5).map([](at::Tensor x, at::Tensor y) {
                          return Nest::map({{"sum", x + y}, {"pair", Nest::tuple({y, x})}});
                        });
                      }},
        DatasetOpCase{"InARow",
                      [] { return rows(7).batch(3).map(&twice).map(&twice).prefetch(2); }},
        DatasetOpCase{
            .name = "NoElement", .make = [] { return rows(0).map(&twice); }, .is_empty = true}));

// A batch copied the memory of its elements, which has the numbers before neg().
TEST(Map, TakesTheValuesOfALazilyNegatedResult) {
  const Dataset negated = rows(3).map([](at::Tensor x) { return x._neg_view(); });
  EXPECT_THAT(elements_of(negated.batch(3)), ElementsAre("[0, -1, -2]"));
}

TEST(Map, TakesTheFieldsOfATuple) {
  EXPECT_THAT(elements_of(pairs(2).map([](at::Tensor x, at::Tensor y) { return y - x; })),
              ElementsAre("10", "10"));
}

TEST(Map, TakesAWholeElement) {
  const auto swap = [](const Nest& pair) {
    return Nest::tuple({pair.items()[1], pair.items()[0]});
  };
  EXPECT_THAT(elements_of(pairs(2).map(swap)), ElementsAre("(10, 0)", "(11, 1)"));
}

TEST(Map, TakesTheFieldsOfAMapInFlattenOrder) {
  const Dataset dataset =
      Dataset::from_tensor_slices(Nest::map({{"b", at::arange(2)}, {"a", at::arange(2) + 5}}));
  EXPECT_THAT(elements_of(dataset.map([](at::Tensor a, at::Tensor b) { return a - b; })),
              ElementsAre("5", "5"));
}

TEST(Map, ReturnsTuplesVectorsAndNests) {
  EXPECT_THAT(elements_of(rows(1).map([](at::Tensor x) { return std::make_tuple(x, x + 1); })),
              ElementsAre("(0, 1)"));
  EXPECT_THAT(elements_of(rows(1).map([](at::Tensor x) {
                return std::vector<at::Tensor>{x, x};
              })),
              ElementsAre("(0, 0)"));
  EXPECT_THAT(elements_of(rows(1).map([](at::Tensor x) {
                return Nest::map({{"a", x}});
              })),
              ElementsAre("{a: 0}"));
}

TEST(Map, KnowsTheSpecOfWhatItReturns) {
  EXPECT_EQ(rows(3).map([](at::Tensor x) { return at::ones({2}) * x; }).element_spec().to_string(),
            "float32[2]");
  EXPECT_EQ(rows(7).batch(3).map(&twice).element_spec().to_string(), "int64[?]");
  EXPECT_EQ(rows(7).batch(3, {.drop_remainder = true}).map(&twice).element_spec().to_string(),
            "int64[3]");
}

TEST(Map, SaysNothingOfSizesWhereItsFunctionFitsOneSizeAlone) {
  const Dataset dataset = rows(8).batch(4).map([](at::Tensor x) { return x.view({2, 2}); });
  EXPECT_EQ(dataset.element_spec().to_string(), "int64[...]");
}

// Two elements do not tell that sizes depend on values. Ops look at the elements themselves.
TEST(Map, WhoseSizesFollowValuesYieldsWholeElements) {
  const Dataset grown = Dataset::range(6).map(
      [](at::Tensor i) { return at::ones({i.item<std::int64_t>() / 2 + 1}); });
  EXPECT_EQ(grown.element_spec().to_string(), "float32[1]");
  std::vector<std::int64_t> sizes;
  Iterator iterator = grown.iterator();
  while (const auto x = iterator.try_next()) sizes.push_back(x->tensor().size(0));
  EXPECT_THAT(sizes, ElementsAre(1, 1, 2, 2, 3, 3));
  const Error error = error_of([&] { grown.batch(3).iterator().get_next(); });
  EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
  EXPECT_THAT(error.message(), HasSubstr("[data.batch]"));
}

TEST(Map, RunsNothingBeforeItIsAsked) {
  int calls = 0;
  const Dataset dataset = rows(3).map([&calls](at::Tensor x) { return ++calls, x; });
  EXPECT_EQ(dataset.cardinality(), 3);
  EXPECT_EQ(calls, 0);
  elements_of(dataset.batch(2).repeat(2));
  EXPECT_EQ(calls, 6);
}

TEST(Map, LosesOnlyTheElementThatFails) {
  const Dataset failing = rows(4).map([](at::Tensor x) {
    COHORT_CHECK(x.item<std::int64_t>() != 2, ErrorCode::data_loss, "two");
    return x;
  });
  EXPECT_THAT(elements_of(failing), ElementsAre("0", "1", "error data_loss", "3"));
}

TEST(Map, NamesTheElementThatFails) {
  const Dataset failing =
      rows(4).map([](at::Tensor x) { return x.item<std::int64_t>() == 1 ? x.view({7}) : x; });
  Iterator iterator = failing.iterator();
  iterator.get_next();
  EXPECT_THAT(error_of([&] { iterator.get_next(); }).what(),
              HasSubstr("mapping element 1 with 'map function'"));
}

// Regression: "map function 'map function'".
TEST(Map, HasNoNameInAMessageIfTheProgramHasGivenNone) {
  const auto failing = [](at::Tensor x) {
    if (x.defined()) throw std::runtime_error("bad row");
    return x;
  };
  const auto text = [](const Dataset& dataset) {
    return std::string(error_of([&] { dataset.element_spec(); }).what());
  };
  EXPECT_THAT(text(rows(2).map(failing)),
              HasSubstr("finding the element spec of a map function with the first elements"));
  EXPECT_THAT(text(rows(2).map(Function(failing, {.name = "fold"}))),
              HasSubstr("finding the element spec of map function 'fold' with"));
}

TEST(Map, CannotEndTheData) {
  const Dataset failing = rows(1).map([](at::Tensor x) {
    COHORT_CHECK(false, ErrorCode::out_of_range, "I am not the end");
    return x;
  });
  EXPECT_THAT(elements_of(failing), ElementsAre("error invalid_argument"));
}

TEST(Map, RefusesFunctionsOfTheWrongArity) {
  const Dataset dataset = pairs(2).map([](at::Tensor x, at::Tensor, at::Tensor) { return x; });
  const Error error = error_of([&] { dataset.iterator().get_next(); });
  EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
  EXPECT_THAT(error.message(), HasSubstr("to take 2 tensors or one Nest for elements (tensor, "
                                         "tensor), got a function of 3 parameters"));
}

TEST(Map, RefusesResultsThatAreNoTensors) {
  const Dataset dataset = rows(2).map([](at::Tensor) { return 1.5; });
  EXPECT_THAT(error_of([&] { dataset.iterator().get_next(); }).message(),
              HasSubstr("got float for field 0; return a tensor"));
}

TEST(Map, RefusesAResultOfAnotherStructure) {
  const Dataset dataset = rows(2).map([](at::Tensor x) {
    return x.item<std::int64_t>() == 0 ? Nest(x) : Nest::tuple({x, x});
  });
  EXPECT_THAT(elements_of(dataset), ElementsAre("0", "error invalid_argument"));
}

TEST(Map, BuildsNoGradients) {
  const at::Tensor weight = at::ones({1}).requires_grad_();
  const Dataset dataset = rows(1).map([weight](at::Tensor x) { return x * weight; });
  EXPECT_FALSE(dataset.iterator().get_next().tensor().requires_grad());
}

TEST(Map, TakesAndReturnsStrings) {
  const Dataset names = Dataset::from_tensor_slices(StringTensor({2}, {"a", "b"}));
  const auto doubled = [](const std::string& name) { return StringTensor(name + name); };
  EXPECT_THAT(elements_of(names.map(doubled)), ElementsAre("'aa'", "'bb'"));
  EXPECT_EQ(names.map(doubled).element_spec().to_string(), "string[]");
  const auto first = [](StringTensor batch) { return batch.slice(0, 1); };
  EXPECT_THAT(elements_of(names.batch(2).map(first)), ElementsAre("['a']"));
  EXPECT_EQ(names.batch(2).map(first).element_spec().to_string(), "string[1]");
}

TEST(ShippedMap, IsRefusedOverStrings) {
  const Dataset names = Dataset::from_tensor_slices(StringTensor({2}, {"a", "b"}));
  const Error error = error_of([&] { names.map([](StringTensor x) { return x; }).serialize(); });
  EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
  EXPECT_THAT(error.message(),
              AllOf(HasSubstr("strings cannot be traced"), HasSubstr("data::lookup()")));
}

TEST(ShippedMap, RunsWithoutItsSource) {
  const Dataset dataset =
      shipped(rows(4).batch(2).map([](at::Tensor x) { return x.to(at::kFloat) / 4; }));
  EXPECT_THAT(elements_of(dataset), ElementsAre("[0, 0.25]", "[0.5, 0.75]"));
}

TEST(ShippedMap, TakesTheLastShortBatchToo) {
  EXPECT_THAT(elements_of(shipped(rows(5).batch(2).map(&twice).map(&twice))),
              ElementsAre("[0, 4]", "[8, 12]", "[16]"));
  EXPECT_THAT(elements_of(shipped(rows(5).repeat(2).batch(4).map(&twice))),
              ElementsAre("[0, 2, 4, 6]", "[8, 0, 2, 4]", "[6, 8]"));
}

// Only the number of elements tells how long the last batch is; varying lengths make it unknown.
TEST(ShippedMap, NamesBothSpecsWhereItWasNotTracedForAnElement) {
  const auto ones = [](const std::vector<at::Tensor>& in) {
    return std::vector{at::ones({in[0].item<std::int64_t>() + 1})};
  };
  if (!function::is_registered_function("test_growing"))
    function::register_function("test_growing", ones);
  const Dataset dataset = shipped(rows(3).map(Function::registered("test_growing")).map(&twice));
  Iterator iterator = dataset.iterator();
  EXPECT_EQ(show(iterator.get_next()), "[2]");
  const Error error = error_of([&] { iterator.get_next(); });
  EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
  EXPECT_THAT(error.message(), AllOf(HasSubstr("expected an element float32[1]"),
                                     HasSubstr("got float32[2]"), HasSubstr("drop_remainder")));
}

TEST(ShippedMap, IsFoundByNameWhereItRuns) {
  const auto negated = [](const std::vector<at::Tensor>& in) { return std::vector{-in[0], in[0]}; };
  if (!function::is_registered_function("test_negate"))
    function::register_function("test_negate", negated);
  const Dataset dataset = rows(2).map(Function::registered("test_negate"));
  EXPECT_THAT(elements_of(shipped(dataset)), ElementsAre("(0, 0)", "(-1, 1)"));
  EXPECT_EQ(shipped(dataset).element_spec().to_string(), "(int64[], int64[])");
}

TEST(ShippedMap, MayBeUnknownWhereItIsBuilt) {
  const Dataset arrived = shipped(rows(2).map(Function::registered("test_unknown")).batch(2));
  EXPECT_EQ(error_of([&] { arrived.iterator().get_next(); }).code(), ErrorCode::not_found);
}

TEST(ShippedMap, IsRefusedWhereItCannotBeTraced) {
  const Dataset dataset = rows(3).map(
      Function([](at::Tensor x) { return x.item<std::int64_t>() > 1 ? x : -x; }, {.name = "fold"}));
  const Error error = error_of([&] { dataset.serialize(); });
  EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
  EXPECT_THAT(error.what(), HasSubstr("tracing map function 'fold' to ship its pipeline"));
}

TEST(ShippedMap, DrawsOtherNumbersForEachElementButTheSameForEachRun) {
  const Dataset dataset = shipped(rows(3).map([](at::Tensor x) { return at::rand({2}) + x * 0; }));
  const auto run = [&](std::uint64_t seed) {
    Iterator iterator = dataset.iterator({.seed = seed, .data_dirs = std::nullopt});
    return drain(iterator);
  };
  EXPECT_EQ(run(1), run(1));
  EXPECT_NE(run(1), run(2));
  EXPECT_NE(run(1)[0], run(1)[1]);
}

TEST(ShippedMap, LeavesNoMarkOnThePipeline) {
  const Dataset dataset = rows(40).shuffle(40, {.seed = 1}).map(&twice);
  dataset.serialize();
  EXPECT_EQ(elements_of(dataset), elements_of(rows(40).shuffle(40, {.seed = 1}).map(&twice)));
}

}  // namespace
}  // namespace cohort::data
