// SPDX-License-Identifier: Apache-2.0
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>

#include "cohort/data/graph/dataset_op_suite.h"

namespace cohort::data {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TensorSpec scalar(at::ScalarType dtype) { return {dtype, std::vector<std::int64_t>{}}; }
ElementSpec one(TensorSpec field) { return ElementSpec::tuple({std::move(field)}); }
ElementSpec numbers() { return one(scalar(at::kLong)); }
ElementSpec vectors(std::int64_t size, at::ScalarType dtype = at::kLong) {
  return one({dtype, {{size}}});
}
Nest list(std::initializer_list<Nest> items) { return Nest::list(items); }

INSTANTIATE_TEST_SUITE_P(FromGenerator, DatasetOp,
                         ::testing::Values(DatasetOpCase{"Numbers",
                                                         [] {
                                                           return generated({3, 1, 2}, numbers());
                                                         },
                                                         /*can_ship=*/false, /*can_save=*/false},
                                           DatasetOpCase{
                                               "Batched",
                                               [] {
                                                 return generated({1, 2, 3}, numbers()).batch(2);
                                               },
                                               /*can_ship=*/false, /*can_save=*/false}));

TEST(FromGenerator, IsMadeAnewForEachIteration) {
  int made = 0;
  const auto make = [&made]() -> Generator {
    ++made;
    return [left = 2](Nest& element) mutable { return element = left, left-- > 0; };
  };
  const Dataset dataset = Dataset::from_generator(make, numbers());
  EXPECT_EQ(made, 0);
  EXPECT_THAT(scalars_of(dataset.repeat(2)), ElementsAre(2, 1, 2, 1));
  EXPECT_EQ(made, 2);
}

TEST(FromGenerator, ConvertsNumbers) {
  for (const auto dtype : {at::kChar, at::kByte, at::kInt, at::kLong, at::kFloat, at::kDouble}) {
    const Dataset dataset = generated({list({1}), list({2}), at::full({1}, 3)}, vectors(1, dtype));
    EXPECT_THAT(elements_of(dataset), ElementsAre("[1]", "[2]", "[3]"));
    EXPECT_EQ((*dataset.begin()).tensor().scalar_type(), dtype);
  }
  EXPECT_THAT(elements_of(generated({true, 2.5}, one(scalar(at::kFloat)))),
              ElementsAre("1", "2.5"));
}

TEST(FromGenerator, ConvertsTextsAndLists) {
  EXPECT_THAT(elements_of(generated({"x", StringTensor("yy")}, one(scalar(kString)))),
              ElementsAre("'x'", "'yy'"));
  EXPECT_THAT(elements_of(generated({list({"a", "b"})}, vectors(2, kString))),
              ElementsAre("['a', 'b']"));
  EXPECT_THAT(elements_of(generated({list({list({1, 2}), list({3, 4}), at::arange(2)})},
                                    one({at::kLong, {{3, 2}}}))),
              ElementsAre("[[1, 2], [3, 4], [0, 1]]"));
  EXPECT_THAT(elements_of(generated({list({})}, vectors(-1))), ElementsAre("[]"));
}

TEST(FromGenerator, TakesAnyShapeWhereNoneIsAsked) {
  EXPECT_THAT(elements_of(generated({1, list({2, 3})}, one({at::kLong, std::nullopt}))),
              ElementsAre("1", "[2, 3]"));
}

TEST(FromGenerator, KeepsNests) {
  const ElementSpec spec = ElementSpec::of(
      Nest::map({{"a", at::zeros({}, at::kLong)}, {"s", Nest::tuple({StringTensor("")})}}));
  const Nest item = Nest::map({{"a", 1}, {"s", Nest::tuple({"x"})}});
  EXPECT_THAT(elements_of(generated({item}, spec)), ElementsAre("{a: 1, s: ('x')}"));
}

TEST(FromGenerator, LosesOnlyABadItem) {
  EXPECT_THAT(elements_of(generated({list({1, 2}), "ERROR", list({1}), list({7, 8})}, vectors(2))),
              ElementsAre("[1, 2]", "error invalid_argument", "error invalid_argument", "[7, 8]"));
}

TEST(FromGenerator, LosesOnlyAnItemOfAnotherStructure) {
  const ElementSpec pair = ElementSpec::tuple({scalar(at::kLong), scalar(at::kLong)});
  const auto items = {Nest::tuple({1, 2}), Nest(5), Nest::tuple({6, 7, 8}), Nest::tuple({9, 10})};
  EXPECT_THAT(elements_of(generated(items, pair)),
              ElementsAre("(1, 2)", "error invalid_argument", "error invalid_argument", "(9, 10)"));
}

// As tf (specification 6.2).
TEST(FromGenerator, NarrowsIntegersAndRefusesRealsForThem) {
  EXPECT_THAT(elements_of(generated({300, -1, 255, 1e9, Nest()}, one(scalar(at::kByte)))),
              ElementsAre("44", "255", "255", "error invalid_argument", "error invalid_argument"));
  Iterator iterator = generated({2.5}, one(scalar(at::kByte))).iterator();
  const Error error = error_of([&] { iterator.try_next(); });
  EXPECT_THAT(error.what(), HasSubstr("expected an integer for uint8, got 2.5"));
  EXPECT_THAT(error.what(), HasSubstr("generating element 0"));
}

TEST(FromGenerator, GoesOnBehindWhatTheGeneratorThrows) {
  const auto make = []() -> Generator {
    return [next = 0](Nest& element) mutable {
      COHORT_CHECK(next++ != 1, ErrorCode::out_of_range, "not the end");
      element = next;
      return next < 4;
    };
  };
  EXPECT_THAT(elements_of(Dataset::from_generator(make, numbers())),
              ElementsAre("1", "error invalid_argument", "3"));
}

TEST(FromGenerator, KeepsNoMemoryOfTheGenerator) {
  const at::Tensor buffer = at::zeros({1}, at::kLong);
  const auto make = [&buffer]() -> Generator {
    return [&buffer](Nest& element) { return element = buffer.add_(1), true; };
  };
  Iterator iterator = Dataset::from_generator(make, vectors(1)).iterator();
  const Nest first = iterator.get_next();
  iterator.get_next();
  EXPECT_EQ(show(first), "[1]");
}

TEST(FromGenerator, ReleasesTheGeneratorAtTheEnd) {
  const auto held = std::make_shared<int>();
  const auto make = [&held]() -> Generator { return [held](Nest&) { return false; }; };
  Iterator iterator = Dataset::from_generator(make, numbers()).iterator();
  EXPECT_FALSE(iterator.try_next());
  EXPECT_EQ(held.use_count(), 1);
}

TEST(FromGenerator, DoesNotKnowItsCardinality) {
  EXPECT_EQ(generated({1}, numbers()).cardinality(), kUnknownCardinality);
  EXPECT_THAT(scalars_of(generated({4, 5}, numbers()).repeat().take(3)), ElementsAre(4, 5, 4));
}

TEST(FromGenerator, CannotBeSavedNorShipped) {
  const Dataset dataset = generated({1, 2}, numbers()).batch(2);
  Iterator iterator = dataset.iterator();
  const Error unsaved = error_of([&] { iterator.save(); });
  EXPECT_EQ(unsaved.code(), ErrorCode::failed_precondition);
  EXPECT_THAT(unsaved.message(), HasSubstr("from_generator"));
  const Error unshipped = error_of([&] { dataset.serialize(); });
  EXPECT_EQ(unshipped.code(), ErrorCode::failed_precondition);
  EXPECT_THAT(unshipped.message(), HasSubstr("from_generator of int64[]"));
}

TEST(FromGenerator, RefusesNoGeneratorAndNoSpec) {
  EXPECT_EQ(error_of([] { Dataset::from_generator(nullptr, numbers()); }).code(),
            ErrorCode::invalid_argument);
  EXPECT_EQ(error_of([] { generated({1}, ElementSpec()); }).code(), ErrorCode::invalid_argument);
}

}  // namespace
}  // namespace cohort::data
