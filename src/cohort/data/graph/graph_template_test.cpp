// SPDX-License-Identifier: Apache-2.0
// Serialization of the functions of flat_map and interleave.
#include "cohort/data/graph/graph_template.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <gmock/gmock.h>

#include "cohort/data/graph/dataset_op_suite.h"

namespace cohort::data {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Dataset names() { return Dataset::from_tensor_slices(StringTensor({3}, {"a", "", "c"})); }

Dataset pairs() {
  return Dataset::from_tensor_slices(
      Nest::map({{"count", at::arange(3)}, {"row", at::arange(12).view({3, 4}) * 10}}));
}

INSTANTIATE_TEST_SUITE_P(
    ShippedFunctions, DatasetOp,
    ::testing::Values(
        DatasetOpCase{
            "TheElement",
            [] { return rows(3).flat_map([](at::Tensor x) { return Dataset::from_tensors(x); }); }},
        DatasetOpCase{"ItsSlices",
                      [] {
                        return rows(7).batch(3).flat_map(
                            [](at::Tensor x) { return Dataset::from_tensor_slices(x); });
                      }},
        DatasetOpCase{"ItsValueAsANumber",
                      [] {
                        return tensors(5).interleave(
                            [](at::Tensor x) {
                              return Dataset::from_tensors(x).repeat(x.item<std::int64_t>());
                            },
                            {.cycle_length = 2, .block_length = 3});
                      }},
        DatasetOpCase{
            "Range",
            [] { return rows(5).flat_map([](std::int64_t x) { return Dataset::range(x); }); }},
        DatasetOpCase{"OpsOnTop",
                      [] {
                        return rows(8).batch(4).interleave(
                            [](at::Tensor x) {
                              return Dataset::from_tensor_slices(x)
                                  .map([](at::Tensor y) { return y * 2 + 1; })
                                  .shuffle(3, {.seed = 4})
                                  .batch(2);
                            },
                            {.cycle_length = 2, .num_parallel_calls = 2});
                      }},
        DatasetOpCase{"Strings",
                      [] {
                        return names().flat_map([](std::string name) {
                          return Dataset::from_tensors(StringTensor(std::move(name))).repeat(2);
                        });
                      }},
        DatasetOpCase{"FieldsOfAMap",
                      [] {
                        return pairs().flat_map([](const Nest& pair) {
                          return Dataset::from_tensor_slices(pair.entries().at("row"))
                              .take(pair.entries().at("count").tensor().item<std::int64_t>());
                        });
                      }},
        DatasetOpCase{"Zipped",
                      [] {
                        return pairs().flat_map([](at::Tensor count, at::Tensor row) {
                          return Dataset::zip(
                              std::vector<Dataset>{Dataset::from_tensors(count).repeat(),
                                                   Dataset::from_tensor_slices(row)});
                        });
                      }},
        DatasetOpCase{"InEachOther",
                      [] {
                        return rows(12).batch(6).flat_map([](at::Tensor x) {
                          return Dataset::from_tensor_slices(x).batch(3).flat_map(
                              [](at::Tensor y) { return Dataset::from_tensor_slices(y); });
                        });
                      }},
        // The inner function uses elements of both inputs.
        DatasetOpCase{
            "InEachOtherWithBothElements",
            [] {
              return rows(4).flat_map([](std::int64_t x) {
                return Dataset::range(3).interleave(
                    [x](at::Tensor y) {
                      return Dataset::zip({Dataset::from_tensors(y).repeat(), Dataset::range(x)});
                    },
                    {.cycle_length = 2});
              });
            }},
        // The inner datasets' elements have the size of the outer element.
        DatasetOpCase{"InEachOtherOfItsSize",
                      [] {
                        return rows(7).batch(3).flat_map([](at::Tensor x) {
                          return Dataset::from_tensors(x).flat_map(
                              [](at::Tensor y) { return Dataset::from_tensors(y); });
                        });
                      }},
        DatasetOpCase{"ThreeDeep",
                      [] {
                        return rows(3).flat_map([](std::int64_t x) {
                          return rows(3).flat_map([x](std::int64_t y) {
                            return rows(2).flat_map([x, y](at::Tensor z) {
                              return Dataset::zip(
                                  {Dataset::from_tensors(z).repeat(),
                                   Dataset::range(x).concatenate(Dataset::range(y))});
                            });
                          });
                        });
                      }},
        DatasetOpCase{"KeysThatLookLikeHoles", [] {
                        return rows(3).flat_map([](at::Tensor x) {
                          return Dataset::from_tensors(
                              Nest::map({{"$field", x}, {"$", at::arange(2)}, {"$$as", x}}));
                        });
                      }}));

template <class F>
Error shipping_error(const Dataset& input, F fn) {
  return error_of([&] { input.flat_map(fn).serialize(); });
}

TEST(GraphTemplate, RefusesValuesThatAreComputedFromTheElement) {
  const Error error = shipping_error(rows(5), [](std::int64_t x) { return Dataset::range(2 * x); });
  EXPECT_EQ(error.code(), ErrorCode::failed_precondition);
  EXPECT_THAT(
      error.message(),
      HasSubstr(
          "whose op 'range' has an attribute 'stop' that depends on the element in another way; "
          "pass the element's own tensors to a source and compute with them in map()"));
  EXPECT_THAT(error.what(), HasSubstr("while shipping the function of flat_map"));
}

// For 0 and 1, x and x * x are equal.
TEST(GraphTemplate, IsNotMisledByTheFirstElements) {
  EXPECT_EQ(shipping_error(rows(2), [](std::int64_t x) { return Dataset::range(x * x); }).code(),
            ErrorCode::failed_precondition);
}

TEST(GraphTemplate, RefusesOtherOpsForAnotherElement) {
  const auto fn = [](std::int64_t x) { return x < 100 ? rows(3) : rows(3).batch(2).unbatch(); };
  EXPECT_THAT(shipping_error(rows(5), fn).message(),
              HasSubstr("has other ops before it for another element"));
}

TEST(GraphTemplate, RefusesElementsInAMapFunction) {
  const auto fn = [](at::Tensor x) { return rows(3).map([x](at::Tensor i) { return i + x; }); };
  EXPECT_THAT(shipping_error(rows(5), fn).message(), HasSubstr("whose op 'map' has an attribute"));
}

TEST(GraphTemplate, RefusesAnInnerFunctionThatComputes) {
  const auto fn = [](at::Tensor x) {
    return Dataset::from_tensors(x).flat_map([](std::int64_t y) { return Dataset::range(y * y); });
  };
  const Error error = shipping_error(rows(5), fn);
  EXPECT_EQ(error.code(), ErrorCode::failed_precondition);
  EXPECT_THAT(error.message(), HasSubstr("op 'range' has an attribute 'stop'"));
  EXPECT_THAT(error.context(),
              ElementsAre("shipping the function of flat_map", "shipping the function of flat_map",
                          HasSubstr("shipping op 2 of 2, 'flat_map'")));
}

TEST(GraphTemplate, RefusesFunctionsThatFailForOtherElements) {
  const auto fn = [](std::int64_t x) {
    COHORT_CHECK(x < 10, ErrorCode::not_found, "no such thing");
    return rows(x);
  };
  EXPECT_THAT(shipping_error(rows(5), fn).what(),
              HasSubstr("while calling a dataset function for a made-up element"));
}

TEST(GraphTemplate, RefusesOpsThatCannotBeShipped) {
  const auto fn = [](at::Tensor) {
    return Dataset::from_generator([] { return [](Nest&) { return false; }; },
                                   ElementSpec::tuple({{at::kLong, std::nullopt}}));
  };
  const ErrorCode code = shipping_error(rows(5), fn).code();
  EXPECT_TRUE(code == ErrorCode::failed_precondition || code == ErrorCode::unimplemented);
}

TEST(GraphTemplate, TellsAFieldFromAConstantOfTheSameValue) {
  const Dataset dataset =
      rows(4).flat_map([](std::int64_t x) { return Dataset::range(x).repeat(0 + 2); });
  const Dataset arrived = Dataset::deserialize(dataset.serialize());
  EXPECT_THAT(scalars_of(arrived), ElementsAre(0, 0, 0, 1, 0, 1, 0, 1, 2, 0, 1, 2));
}

Nest step(const char* op, Nest::Items inputs, Nest attributes) {
  return Nest::list({op, Nest::list(std::move(inputs)), std::move(attributes)});
}

TEST(GraphTemplate, RefusesBytesThatAreNone) {
  const auto code = [](Nest wire) { return error_of([&] { GraphTemplate::read(wire); }).code(); };
  const Nest none = Nest::map({});
  EXPECT_EQ(code(Nest::list({})), ErrorCode::data_loss);
  EXPECT_EQ(code(Nest::list({step("no such op", {}, none)})), ErrorCode::unimplemented);
  EXPECT_EQ(code(Nest::list({step("repeat", {0}, none)})), ErrorCode::data_loss);
  EXPECT_EQ(code(Nest::list({step("repeat", {}, none)})), ErrorCode::data_loss);
  EXPECT_EQ(code(Nest::list({step("range", {}, 7)})), ErrorCode::data_loss);
}

TEST(GraphTemplate, RefusesHolesThatTheElementDoesNotFit) {
  const auto error = [](Nest hole) {
    const GraphTemplate graph =
        GraphTemplate::read(Nest::list({step("from_tensors", {}, Nest::map({{"element", hole}}))}));
    return error_of([&] { graph.graph_of({at::arange(4)}); }).code();
  };
  const auto hole = [](std::int64_t field, const char* as, Nest sizes) {
    return Nest::map({{"$field", field}, {"$as", as}, {"$sizes", std::move(sizes)}});
  };
  EXPECT_EQ(error(hole(1, "tensor", {})), ErrorCode::data_loss);
  EXPECT_EQ(error(hole(0, "int", {})), ErrorCode::data_loss);
  EXPECT_EQ(error(hole(0, "tensor", Nest::list({3}))), ErrorCode::data_loss);
  EXPECT_EQ(error(hole(0, "table", {})), ErrorCode::data_loss);
}

}  // namespace
}  // namespace cohort::data
