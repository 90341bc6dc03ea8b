// SPDX-License-Identifier: Apache-2.0
#include <ATen/ops/tensor.h>
#include <gmock/gmock.h>

#include "cohort/data/example.h"
#include "cohort/data/files/file_fixture.h"
#include "cohort/data/graph/dataset_op_suite.h"

namespace cohort::data {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Strings = std::vector<std::string>;

std::string bytes_of(Features features) { return Example{std::move(features)}.serialize(); }

std::string parsed(const FeatureSpecs& specs, Features features) {
  return show(ExampleParser(specs).parse(StringTensor(bytes_of(std::move(features)))));
}

Error error_of_parse(const FeatureSpecs& specs, Features features) {
  return error_of([&] { parsed(specs, std::move(features)); });
}

const FeatureSpec kWhole{.dtype = at::kLong};

Dataset suite_examples() {
  Strings examples;
  for (std::int64_t i = 0; i < 5; ++i) {
    Features features{{"label", Int64List{i}}, {"name", BytesList{std::to_string(i)}}};
    if (i != 2) features["x"] = FloatList{0.5F, static_cast<float>(i)};
    examples.push_back(bytes_of(std::move(features)));
  }
  return Dataset::from_tensor_slices(StringTensor(examples));
}

FeatureSpecs suite_specs() {
  return {{"label", kWhole},
          {"name", {.dtype = kString}},
          {"x", {.sizes = {2}, .default_value = at::tensor({7.0F, 8.0F})}}};
}

INSTANTIATE_TEST_SUITE_P(
    ParseExample, DatasetOp,
    ::testing::Values(
        DatasetOpCase{"Elements", [] { return suite_examples().parse_example(suite_specs()); }},
        DatasetOpCase{"Batched",
                      [] { return suite_examples().parse_example(suite_specs()).batch(2); }},
        DatasetOpCase{"OfBatches",
                      [] { return suite_examples().batch(2).parse_example(suite_specs()); }},
        DatasetOpCase{"Variable", [] {
                        return suite_examples().batch(3).parse_example(
                            {{"x", {.is_variable_length = true}},
                             {"none", {.is_variable_length = true}}});
                      }}));

TEST(ParseExample, MakesTensors) {
  EXPECT_EQ(parsed({{"a", kWhole}}, {{"a", Int64List{1}}}), "{a: 1}");
  EXPECT_EQ(parsed({{"a", {.dtype = at::kLong, .sizes = {2, 1}}}}, {{"a", Int64List{1, 2}}}),
            "{a: [[1], [2]]}");
  EXPECT_EQ(parsed({{"s", {.dtype = kString}}, {"f", {.sizes = {1}}}},
                   {{"s", BytesList{"x"}}, {"f", FloatList{0.5F}}, {"other", Int64List{1}}}),
            "{f: [0.5], s: 'x'}");
}

TEST(ParseExample, FillsDefaultsIn) {
  EXPECT_EQ(parsed({{"z", {.default_value = 2.5}}, {"i", {.dtype = at::kLong, .default_value = 3}}},
                   {{"i", Feature()}}),
            "{i: 3, z: 2.5}");
  EXPECT_EQ(parsed({{"s", {.dtype = kString, .default_value = "none"}}}, {}), "{s: 'none'}");
}

TEST(ParseExample, MakesVectorsOfAnyLength) {
  const FeatureSpecs specs{{"a", {.dtype = at::kLong, .is_variable_length = true}},
                           {"s", {.dtype = kString, .is_variable_length = true}}};
  EXPECT_EQ(parsed(specs, {{"a", Int64List{1, 2}}}), "{a: [1, 2], s: []}");
  const Strings two{bytes_of({{"a", Int64List{1, 2}}}), bytes_of({{"s", BytesList{"x"}}})};
  EXPECT_EQ(show(ExampleParser(specs).parse(StringTensor(two))),
            "{a: [[1, 2], [0, 0]], s: [[''], ['x']]}");
}

// As tf.io.parse_example(), whereas Example::parse() merges lists as protocol buffers do.
TEST(ParseExample, TakesTheFirstListOfAFeature) {
  const auto values_of = [](at::ScalarType dtype, std::string_view hex) {
    const FeatureSpecs specs{{"a", {.dtype = dtype, .is_variable_length = true}}};
    return show(ExampleParser(specs).parse(StringTensor(from_hex(hex))));
  };
  const std::string_view two_kinds = "0a130a110a0161120c1a030a01010a050a03616263";
  EXPECT_EQ(values_of(at::ScalarType::Long, two_kinds),
            values_of(at::ScalarType::Long, "0a0c0a0a0a016112051a030a0101"));
  EXPECT_EQ(error_of([&] { values_of(kString, two_kinds); }).code(), ErrorCode::invalid_argument);
  EXPECT_EQ(values_of(at::ScalarType::Long, "0a110a0f0a0161120a1a030a01011a030a0102"),
            values_of(at::ScalarType::Long, "0a0c0a0a0a016112051a030a0101"));
}

TEST(ParseExample, NamesAFeatureThatIsMissing) {
  const Error error = error_of_parse({{"z", kWhole}}, {{"a", Int64List{1}}});
  EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
  EXPECT_THAT(error.message(), AllOf(HasSubstr("'z'"), HasSubstr("int64"), HasSubstr("required")));
}

// The message did not say what the example has.
TEST(ParseExample, ListsTheFeaturesThatAreThere) {
  const FeatureSpecs specs{{"lable", kWhole}};
  EXPECT_THAT(error_of_parse(specs, {{"image", BytesList{"x"}}, {"label", Int64List{1}}}).message(),
              HasSubstr("got none in example 0, whose features are 'image', 'label'; did you mean "
                        "'label'?; give it a default_value"));
  EXPECT_THAT(error_of_parse(specs, {}).message(), HasSubstr(", which has no features; give it"));
}

TEST(ParseExample, ListsNoMoreFeaturesThanCanBeRead) {
  Features many;
  for (int i = 100; i < 200; ++i) many.emplace("f" + std::to_string(i), Int64List{1});
  EXPECT_THAT(error_of_parse({{"z", kWhole}}, many).message(),
              AllOf(HasSubstr("'f100'"), HasSubstr("'f119', …, 100 in all"),
                    ::testing::Not(HasSubstr("'f120'"))));
}

TEST(ParseExample, NamesAFeatureOfAnotherKind) {
  EXPECT_THAT(error_of_parse({{"a", {}}}, {{"a", Int64List{1}}}).message(),
              AllOf(HasSubstr("expected float32 in feature 'a'"), HasSubstr("got int64")));
  EXPECT_THAT(
      error_of_parse({{"a", {.is_variable_length = true}}}, {{"a", Int64List{1}}}).message(),
      HasSubstr("got int64"));
}

TEST(ParseExample, NamesAFeatureOfAnotherLength) {
  EXPECT_THAT(error_of_parse({{"a", kWhole}}, {{"a", Int64List{1, 2}}}).message(),
              HasSubstr("expected 1 values in feature 'a', got 2 in example 0"));
  // A list without values is not a missing one.
  EXPECT_THAT(
      error_of_parse({{"a", {.dtype = at::kLong, .default_value = 5}}}, {{"a", Int64List{}}})
          .message(),
      HasSubstr("got 0"));
}

TEST(ParseExample, WantsAFeature) {
  EXPECT_EQ(error_of([] { ExampleParser({}); }).code(), ErrorCode::invalid_argument);
}

TEST(ParseExample, RefusesImpossibleSpecs) {
  const auto code_of = [](FeatureSpec spec) {
    return error_of([&] { ExampleParser({{"a", spec}}); }).code();
  };
  EXPECT_EQ(code_of({.dtype = at::kInt}), ErrorCode::invalid_argument);
  EXPECT_EQ(code_of({.sizes = {-1}}), ErrorCode::invalid_argument);
  EXPECT_EQ(code_of({.sizes = {2}, .default_value = 1.0}), ErrorCode::invalid_argument);
  EXPECT_EQ(code_of({.dtype = at::kLong, .default_value = 1.5}), ErrorCode::invalid_argument);
  EXPECT_EQ(code_of({.dtype = kString, .default_value = 1}), ErrorCode::invalid_argument);
  EXPECT_EQ(code_of({.sizes = {2}, .is_variable_length = true}), ErrorCode::invalid_argument);
}

TEST(ParseExample, TakesTheOffendingElementAlone) {
  const Strings examples{bytes_of({{"a", Int64List{1}}}), "no example",
                         bytes_of({{"a", Int64List{3}}})};
  EXPECT_THAT(
      elements_of(
          Dataset::from_tensor_slices(StringTensor(examples)).parse_example({{"a", kWhole}})),
      ElementsAre("{a: 1}", "error invalid_argument", "{a: 3}"));
}

TEST(ParseExample, WantsStrings) {
  EXPECT_THAT(error_of([] {
                rows(3).parse_example({{"a", kWhole}});
              }).message(),
              HasSubstr("got int64[]"));
}

TEST(ParseExample, KnowsItsSpec) {
  EXPECT_EQ(suite_examples().parse_example(suite_specs()).element_spec().to_string(),
            "{label: int64[], name: string[], x: float32[2]}");
  EXPECT_EQ(suite_examples().batch(2).parse_example(suite_specs()).element_spec().to_string(),
            "{label: int64[?], name: string[?], x: float32[?, 2]}");
}

}  // namespace
}  // namespace cohort::data
