// SPDX-License-Identifier: Apache-2.0
#include <ATen/TensorOperators.h>
#include <ATen/ops/add.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>

#include "cohort/data/graph/dataset_op_suite.h"

namespace cohort::data {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

at::Tensor is_even(at::Tensor x) { return x % 2 == 0; }
at::Tensor is_none(at::Tensor x) { return x < 0; }

INSTANTIATE_TEST_SUITE_P(
    Filter, DatasetOp,
    ::testing::Values(DatasetOpCase{"Rows", [] { return rows(9).filter(&is_even); }},
                      DatasetOpCase{"Tensors", [] { return tensors(9).filter(&is_even).batch(2); }},
                      DatasetOpCase{"Pairs",
                                    [] {
                                      return rows(9).enumerate().filter(
                                          [](at::Tensor i, at::Tensor x) {
                                            return (i + x) % 3 == 0;
                                          });
                                    }},
                      DatasetOpCase{.name = "Nothing",
                                    .make = [] { return rows(4).filter(&is_none); },
                                    .is_empty = true}));

TEST(Filter, KeepsWhatThePredicateTakes) {
  EXPECT_THAT(scalars_of(rows(5).filter(&is_even)), ElementsAre(0, 2, 4));
  EXPECT_THAT(scalars_of(rows(5).filter(&is_none)), ElementsAre());
}

TEST(Filter, TakesABoolOfTheHost) {
  const auto large = [](at::Tensor x) { return x.item<std::int64_t>() > 2; };
  EXPECT_THAT(scalars_of(rows(5).filter(large)), ElementsAre(3, 4));
}

TEST(Filter, SeesStrings) {
  const Dataset names = Dataset::from_tensor_slices(StringTensor({3}, {"a.txt", "b.py", "c.py"}));
  const auto is_python = [](const std::string& name) { return name.ends_with(".py"); };
  EXPECT_THAT(elements_of(names.filter(is_python)), ElementsAre("'b.py'", "'c.py'"));
}

TEST(Filter, DoesNotKnowItsCardinality) {
  EXPECT_EQ(rows(5).filter(&is_even).cardinality(), kUnknownCardinality);
  EXPECT_EQ(rows(5).repeat().filter(&is_even).cardinality(), kUnknownCardinality);
  EXPECT_EQ(rows(5).filter(&is_even).shard(2, 0).cardinality(), kUnknownCardinality);
}

TEST(Filter, EndsWhereNothingIsKeptAndRepeated) {
  EXPECT_THAT(scalars_of(rows(3).filter(&is_none).repeat()), ElementsAre());
}

TEST(Filter, RefusesAPredicateOfAnotherTypeAtOnce) {
  const Error error = error_of([] { rows(3).filter([](at::Tensor x) { return x; }); });
  EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
  EXPECT_THAT(error.message(), HasSubstr("[data.filter] expected a scalar bool from"));
  EXPECT_THAT(error.message(), HasSubstr("got int64[]"));
}

TEST(Filter, RefusesOneBoolForEachValue) {
  const Error error = error_of([] { rows(8).batch(4).filter(&is_even); });
  EXPECT_THAT(error.message(), HasSubstr("got bool[1]"));
}

TEST(Filter, LosesOnlyTheElementThatFails) {
  EXPECT_THAT(elements_of(failing_at(1, 4).filter(&is_even)),
              ElementsAre("0", "error data_loss", "2"));
  const Dataset failing = rows(4).filter([](at::Tensor x) {
    COHORT_CHECK(x.item<std::int64_t>() != 1, ErrorCode::out_of_range, "not the end");
    return true;
  });
  EXPECT_THAT(elements_of(failing), ElementsAre("0", "error invalid_argument", "2", "3"));
}

TEST(Filter, NamesTheElementThatFails) {
  Iterator iterator = rows(4)
                          .filter([](at::Tensor x) {
                            return x.item<std::int64_t>() == 0 || x.view({7}).numel() == 0;
                          })
                          .iterator();
  iterator.get_next();
  EXPECT_THAT(error_of([&] { iterator.get_next(); }).what(),
              HasSubstr("filtering element 1 with 'filter predicate'"));
}

TEST(Filter, HasASpecThoughItKeepsNothingOfAnEndlessInput) {
  const auto never = [](at::Tensor) { return at::zeros({}, at::kBool); };
  const auto twice = [](at::Tensor x) { return at::add(x, x); };
  EXPECT_EQ(rows(5).repeat().filter(never).map(twice).element_spec().to_string(), "int64[]");
  EXPECT_EQ(tensors(5).repeat().repeat(2).filter(never).map(twice).element_spec().to_string(),
            "int64[]");
  const auto slices = [](at::Tensor x) { return Dataset::from_tensor_slices(x); };
  const Dataset refused = rows(5).repeat().filter(never).flat_map(slices);
  EXPECT_EQ(error_of([&] { static_cast<void>(refused.element_spec()); }).code(),
            ErrorCode::invalid_argument);
}

}  // namespace
}  // namespace cohort::data
