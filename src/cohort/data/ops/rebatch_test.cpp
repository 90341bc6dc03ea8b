// SPDX-License-Identifier: Apache-2.0
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>

#include "cohort/data/graph/dataset_op_suite.h"
#include "cohort/data/sharding/graph_edit.h"

namespace cohort::data {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const BatchOptions kFull{.drop_remainder = true};

Dataset names(std::int64_t count) {
  std::vector<std::string> values;
  for (std::int64_t i = 0; i < count; ++i) values.push_back(std::string(1, char('a' + i)));
  return Dataset::from_tensor_slices(StringTensor(values));
}

// Batches of these sizes, whose rows are consecutive numbers.
Dataset batches(std::vector<std::int64_t> sizes) {
  return rows(static_cast<std::int64_t>(sizes.size()))
      .map(
          [sizes](at::Tensor element) {
            const auto i = element.item<std::int64_t>();
            std::int64_t begin = 0;
            for (std::int64_t j = 0; j < i; ++j) begin += sizes[static_cast<std::size_t>(j)];
            return at::arange(begin, begin + sizes[static_cast<std::size_t>(i)], at::kLong);
          },
          {.output_spec = ElementSpec::tuple({{at::kLong, std::vector<std::int64_t>{-1}}})});
}

INSTANTIATE_TEST_SUITE_P(
    Rebatch, DatasetOp,
    ::testing::Values(DatasetOpCase{"Smaller",
                                    [] {
                                      return rows(20).batch(6).rebatch({4, 1});
                                    }},
                      DatasetOpCase{"Larger", [] { return tensors(11).batch(3).rebatch({5}); }},
                      DatasetOpCase{"Zeros",
                                    [] {
                                      return rows(9).batch(2).rebatch({1, 1, 0, 0});
                                    }},
                      DatasetOpCase{
                          "Dropping",
                          [] {
                            return rows(11).batch(5).rebatch({4, 3}, {.drop_remainder = true});
                          }},
                      DatasetOpCase{"Strings", [] { return names(7).batch(3).rebatch({2}); }},
                      DatasetOpCase{"Repeated",
                                    [] {
                                      return rows(6).batch(4).repeat(2).rebatch({2, 2});
                                    }},
                      DatasetOpCase{.name = "Nothing",
                                    .make = [] { return rows(0).batch(4).rebatch({2}); },
                                    .is_empty = true}));

INSTANTIATE_TEST_SUITE_P(
    RebatchSplit, DatasetOp,
    ::testing::Values(DatasetOpCase{"Equal", [] { return rows(16).batch(8).rebatch_split(2); }},
                      DatasetOpCase{"EmptyTail",
                                    [] { return tensors(8).batch(4).rebatch_split(3); }},
                      DatasetOpCase{"Strings", [] { return names(7).batch(3).rebatch_split(2); }},
                      DatasetOpCase{"Whole", [] { return rows(3).batch(3).rebatch_split(1); }},
                      DatasetOpCase{.name = "Nothing",
                                    .make = [] { return rows(0).batch(4).rebatch_split(2); },
                                    .is_empty = true}));

TEST(Rebatch, CutsAcrossTheBordersOfIncomingBatches) {
  EXPECT_THAT(elements_of(rows(13).batch(5).rebatch({2, 1, 1, 1})),
              ElementsAre("[0, 1]", "[2]", "[3]", "[4]", "[5, 6]", "[7]", "[8]", "[9]", "[10, 11]",
                          "[12]"));
  EXPECT_THAT(elements_of(rows(12).batch(4).rebatch({6})),
              ElementsAre("[0, 1, 2, 3, 4, 5]", "[6, 7, 8, 9, 10, 11]"));
}

TEST(Rebatch, KeepsOrDropsTheLastShortBatch) {
  EXPECT_THAT(elements_of(rows(5).batch(4).rebatch({2, 2})),
              ElementsAre("[0, 1]", "[2, 3]", "[4]"));
  EXPECT_THAT(elements_of(rows(5).batch(4).rebatch({2, 2}, {.drop_remainder = true})),
              ElementsAre("[0, 1]", "[2, 3]"));
}

TEST(Rebatch, EmitsEmptyBatchesThatAreDueAndNoneBehindAPartialOne) {
  EXPECT_THAT(elements_of(rows(4).batch(4).rebatch({1, 1, 0})),
              ElementsAre("[0]", "[1]", "[]", "[2]", "[3]", "[]"));
  EXPECT_THAT(elements_of(rows(3).batch(4).rebatch({2, 0})), ElementsAre("[0, 1]", "[]", "[2]"));
}

TEST(Rebatch, MakesEmptyBatchesOfTheShapeThatIsKnown) {
  const Dataset dataset = Dataset::from_tensor_slices(at::zeros({2, 3})).batch(2).rebatch({0, 2});
  Iterator iterator = dataset.iterator();
  const Nest empty = iterator.get_next();
  EXPECT_EQ(empty.tensor().sizes(), at::IntArrayRef({0, 3}));
  EXPECT_EQ(empty.tensor().scalar_type(), at::kFloat);
}

TEST(Rebatch, PassesOverEmptyIncomingBatches) {
  EXPECT_THAT(elements_of(batches({2, 0, 1, 0, 3}).rebatch({2})),
              ElementsAre("[0, 1]", "[2, 3]", "[4, 5]"));
}

TEST(Rebatch, CutsEveryFieldAlike) {
  const Dataset dataset = Dataset::from_tensor_slices(
      Nest::map({{"a", at::arange(4)}, {"b", at::arange(8).view({4, 2})}}));
  EXPECT_THAT(elements_of(dataset.batch(3).rebatch({2})),
              ElementsAre("{a: [0, 1], b: [[0, 1], [2, 3]]}", "{a: [2, 3], b: [[4, 5], [6, 7]]}"));
}

TEST(Rebatch, CutsStrings) {
  EXPECT_THAT(elements_of(names(4).batch(3).rebatch({2})), ElementsAre("['a', 'b']", "['c', 'd']"));
}

TEST(Rebatch, KnowsASizeWhereEveryBatchHasIt) {
  const auto spec = [](const Dataset& dataset) { return dataset.element_spec().to_string(); };
  EXPECT_EQ(spec(rows(8).batch(4, kFull).rebatch({2, 2})), "int64[2]");
  EXPECT_EQ(spec(rows(8).batch(5, kFull).rebatch({2, 2})), "int64[?]");
  EXPECT_EQ(spec(rows(8).batch(4).rebatch({2, 2})), "int64[?]");
  EXPECT_EQ(spec(rows(8).batch(4).rebatch({2, 2}, {.drop_remainder = true})), "int64[2]");
  EXPECT_EQ(spec(rows(8).batch(4, kFull).rebatch({2, 1, 1})), "int64[?]");
  EXPECT_EQ(spec(rows(16).batch(2, kFull).batch(4, kFull).rebatch({2})), "int64[2, 2]");
}

TEST(Rebatch, ReportsFieldsOfDifferentLengthsOnceAndGoesOn) {
  const Dataset dataset = rows(3).map([](at::Tensor element) {
    const auto i = element.item<std::int64_t>();
    return std::make_tuple(at::arange(2), at::arange(i == 1 ? 3 : 2));
  });
  EXPECT_THAT(elements_of(dataset.rebatch({2})),
              ElementsAre("([0, 1], [0, 1])", "error invalid_argument", "([0, 1], [0, 1])"));
}

TEST(Rebatch, ReportsRowsOfAnotherShapeOnceAndKeepsThoseItHas) {
  const Dataset dataset = rows(3).map([](at::Tensor element) {
    const auto i = element.item<std::int64_t>();
    return at::full({1, i == 1 ? 2 : 1}, i, at::kLong);
  });
  EXPECT_THAT(elements_of(dataset.rebatch({2})),
              ElementsAre("error invalid_argument", "[[0], [2]]"));
}

TEST(Rebatch, LosesOnlyTheBatchThatFails) {
  const Dataset failing = rows(3).map([](at::Tensor element) {
    const auto i = element.item<std::int64_t>();
    COHORT_CHECK(i != 1, ErrorCode::data_loss, "one");
    return at::full({2}, i, at::kLong);
  });
  EXPECT_THAT(elements_of(failing.rebatch({3})),
              ElementsAre("error data_loss", "[0, 0, 2]", "[2]"));
  EXPECT_THAT(elements_of(failing.rebatch_split(2)),
              ElementsAre("[0]", "[0]", "error data_loss", "[2]", "[2]"));
}

TEST(Rebatch, CountsNothing) {
  EXPECT_EQ(rows(8).batch(4).rebatch({2}).cardinality(), kUnknownCardinality);
  EXPECT_EQ(rows(8).batch(4).rebatch_split(2).cardinality(), kUnknownCardinality);
}

TEST(Rebatch, RefusesSizesThatAreNone) {
  const Dataset dataset = rows(4).batch(2);
  EXPECT_THAT(error_of([&] {
                dataset.rebatch({2, -1});
              }).message(),
              HasSubstr("[data.rebatch] expected sizes >= 0, got -1"));
  EXPECT_THAT(error_of([&] {
                dataset.rebatch({0, 0});
              }).message(),
              HasSubstr("expected at least one size > 0, got 2 sizes without one"));
  EXPECT_EQ(error_of([&] { dataset.rebatch({}); }).code(), ErrorCode::invalid_argument);
  EXPECT_THAT(error_of([&] { dataset.rebatch_split(0); }).message(),
              HasSubstr("[data.rebatch_split] expected parts > 0, got 0"));
}

TEST(Rebatch, RefusesScalars) {
  EXPECT_THAT(error_of([] { rows(4).rebatch({2}); }).message(),
              HasSubstr("[data.rebatch] expected batches, got int64[] with a scalar in field 0; "
                        "batch() first"));
  EXPECT_EQ(error_of([] { rows(4).rebatch_split(2); }).code(), ErrorCode::invalid_argument);
}

// No method checks a peer's graph; an empty batch of scalars once crashed.
TEST(Rebatch, ReportsScalarsInAGraphFromAPeer) {
  const Nest sizes = Nest::list({std::int64_t{0}, std::int64_t{1}});
  const Dataset dataset(
      make_node("rebatch", {rows(3).node()}, {{"sizes", sizes}, {"drop_remainder", false}}));
  EXPECT_THAT(error_of([&] { dataset.element_spec(); }).message(),
              HasSubstr("[data.rebatch] expected batches, got int64[] with a scalar in field 0"));
  EXPECT_THAT(elements_of(dataset, 9),
              ElementsAre("error invalid_argument", "error invalid_argument",
                          "error invalid_argument", "error invalid_argument"));
}

TEST(RebatchSplit, CutsEachBatchInPartsWithAnEmptyTail) {
  EXPECT_THAT(elements_of(rows(8).batch(4).rebatch_split(3)),
              ElementsAre("[0, 1]", "[2, 3]", "[]", "[4, 5]", "[6, 7]", "[]"));
  EXPECT_THAT(elements_of(rows(10).batch(7).rebatch_split(3)),
              ElementsAre("[0, 1, 2]", "[3, 4, 5]", "[6]", "[7]", "[8]", "[9]"));
  EXPECT_THAT(elements_of(batches({2, 0, 1}).rebatch_split(2)),
              ElementsAre("[0]", "[1]", "[]", "[]", "[2]", "[]"));
}

TEST(RebatchSplit, CutsEachFieldForItself) {
  const Dataset dataset =
      rows(1).map([](at::Tensor) { return std::make_tuple(at::arange(4), at::arange(6)); });
  EXPECT_THAT(elements_of(dataset.rebatch_split(2)),
              ElementsAre("([0, 1], [0, 1, 2])", "([2, 3], [3, 4, 5])"));
}

TEST(RebatchSplit, KnowsASizeWhereItDivides) {
  const auto spec = [](const Dataset& dataset) { return dataset.element_spec().to_string(); };
  EXPECT_EQ(spec(rows(16).batch(8, kFull).rebatch_split(2)), "int64[4]");
  EXPECT_EQ(spec(rows(16).batch(8, kFull).rebatch_split(3)), "int64[?]");
  EXPECT_EQ(spec(rows(16).batch(8).rebatch_split(2)), "int64[?]");
}

TEST(RebatchSplit, ReportsScalarsOfUnknownRank) {
  const ElementSpec unknown = ElementSpec::tuple({{at::kLong, std::nullopt}});
  const Dataset dataset = rows(3).map(
      [](at::Tensor element) {
        const auto i = element.item<std::int64_t>();
        return i == 1 ? at::full({}, i, at::kLong) : at::full({2}, i, at::kLong);
      },
      {.output_spec = unknown});
  EXPECT_EQ(dataset.rebatch_split(2).element_spec().to_string(), "int64[...]");
  EXPECT_THAT(elements_of(dataset.rebatch_split(2)),
              ElementsAre("[0]", "[0]", "error invalid_argument", "[2]", "[2]"));
}

}  // namespace
}  // namespace cohort::data
