// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>

#include <array>
#include <cmath>

#include "cohort/data/field_function.h"
#include "cohort/data/graph/dataset_op_suite.h"

namespace cohort::data {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr std::array kNumberDtypes{at::kFloat, at::kDouble, at::kInt, at::kLong};

// The result of tf.strings.to_number of TensorFlow 2.21 for a text, as Python prints it; empty for
// an error. In the order of kNumberDtypes.
struct RecordedNumber {
  std::string text;
  std::array<std::string, 4> numbers;
};

// clang-format off
const RecordedNumber kRecordedNumbers[] = {
    {"1", {"1.0", "1.0", "1", "1"}},
    {"-1", {"-1.0", "-1.0", "-1", "-1"}},
    {"+1", {"1.0", "1.0", "1", "1"}},
    {"+-1", {"", "", "", ""}},
    {" 7 ", {"7.0", "7.0", "7", "7"}},
    {"\t7\n", {"7.0", "7.0", "7", "7"}},
    {"7\v", {"7.0", "7.0", "7", "7"}},
    {"\f7", {"7.0", "7.0", "7", "7"}},
    {"7 7", {"", "", "", ""}},
    {"", {"", "", "", ""}},
    {"  ", {"", "", "", ""}},
    {"abc", {"", "", "", ""}},
    {"1.5", {"1.5", "1.5", "", ""}},
    {"1E3", {"1000.0", "1000.0", "", ""}},
    {".5", {"0.5", "0.5", "", ""}},
    {"5.", {"5.0", "5.0", "", ""}},
    {"-.5", {"-0.5", "-0.5", "", ""}},
    {"+.5", {"0.5", "0.5", "", ""}},
    {"1e", {"", "", "", ""}},
    {"1e400", {"inf", "inf", "", ""}},
    {"-1e400", {"-inf", "-inf", "", ""}},
    {"1e-400", {"0.0", "0.0", "", ""}},
    {"1e39", {"inf", "1e+39", "", ""}},
    {"1e-50", {"0.0", "1e-50", "", ""}},
    {"inf", {"inf", "inf", "", ""}},
    {"-inf", {"-inf", "-inf", "", ""}},
    {"+inf", {"inf", "inf", "", ""}},
    {"Infinity", {"inf", "inf", "", ""}},
    {"INFINITY", {"inf", "inf", "", ""}},
    {"nan", {"nan", "nan", "", ""}},
    {"NAN", {"nan", "nan", "", ""}},
    {"-nan", {"nan", "nan", "", ""}},
    {"nan(1)", {"nan", "nan", "", ""}},
    {"infi", {"", "", "", ""}},
    {"0x10", {"16.0", "16.0", "", ""}},
    {"0X1p3", {"8.0", "8.0", "", ""}},
    {"-0x10", {"-16.0", "-16.0", "", ""}},
    {"0x", {"", "", "", ""}},
    {"0x1.8", {"1.5", "1.5", "", ""}},
    {"1_000", {"", "", "", ""}},
    {"1,000", {"", "", "", ""}},
    {"2147483647", {"2147483648.0", "2147483647.0", "2147483647", "2147483647"}},
    {"2147483648", {"2147483648.0", "2147483648.0", "", "2147483648"}},
    {"-2147483648", {"-2147483648.0", "-2147483648.0", "-2147483648", "-2147483648"}},
    {"-2147483649", {"-2147483648.0", "-2147483649.0", "", "-2147483649"}},
    {"9223372036854775807", {"9.223372036854776e+18", "9.223372036854776e+18", "", "9223372036854775807"}},
    {"9223372036854775808", {"9.223372036854776e+18", "9.223372036854776e+18", "", ""}},
    {"-9223372036854775808", {"-9.223372036854776e+18", "-9.223372036854776e+18", "", "-9223372036854775808"}},
    {"-9223372036854775809", {"-9.223372036854776e+18", "-9.223372036854776e+18", "", ""}},
    {"16777217", {"16777216.0", "16777217.0", "16777217", "16777217"}},
    {"0.1", {"0.10000000149011612", "0.1", "", ""}},
    {"1f", {"", "", "", ""}},
    {"00012", {"12.0", "12.0", "12", "12"}},
    {"-0", {"-0.0", "-0.0", "0", "0"}},
    {"- 1", {"", "", "", ""}},
    {"--1", {"", "", "", ""}},
    {"\2407", {"", "", "", ""}},
    {"1.7976931348623159e308", {"inf", "inf", "", ""}},
    {"4.9e-324", {"0.0", "5e-324", "", ""}},
    {"3.4028236e38", {"inf", "3.4028236e+38", "", ""}},
    {"1e+5", {"100000.0", "100000.0", "", ""}},
    {"1e5.0", {"", "", "", ""}},
    {"0b1", {"", "", "", ""}},
};
// clang-format on

Dataset numbers_of(std::vector<std::string> texts, at::ScalarType dtype) {
  return Dataset::from_tensor_slices(StringTensor(texts)).map(to_number({}, {.dtype = dtype}));
}

double as_double(const at::Tensor& scalar) {
  switch (scalar.scalar_type()) {
    case at::kFloat:
      return *scalar.data_ptr<float>();
    case at::kDouble:
      return *scalar.data_ptr<double>();
    default:
      return std::nan("");
  }
}

bool is_recorded(const at::Tensor& got, const std::string& recorded) {
  if (got.scalar_type() == at::kInt) return std::to_string(*got.data_ptr<int>()) == recorded;
  if (got.scalar_type() == at::kLong) {
    return std::to_string(*got.data_ptr<std::int64_t>()) == recorded;
  }
  const double wanted = std::strtod(recorded.c_str(), nullptr);
  const double value = as_double(got);
  if (std::isnan(wanted)) return std::isnan(value);
  return value == wanted && std::signbit(value) == std::signbit(wanted);
}

TEST(ToNumber, IsTensorFlows) {
  for (const RecordedNumber& recorded : kRecordedNumbers) {
    for (std::size_t i = 0; i < kNumberDtypes.size(); ++i) {
      SCOPED_TRACE("'" + recorded.text + "' as " + dtype_name(kNumberDtypes[i]));
      Iterator iterator = numbers_of({recorded.text}, kNumberDtypes[i]).iterator();
      if (recorded.numbers[i].empty()) {
        EXPECT_EQ(error_of([&] { iterator.get_next(); }).code(), ErrorCode::invalid_argument);
      } else {
        EXPECT_TRUE(is_recorded(iterator.get_next().tensor(), recorded.numbers[i]));
      }
    }
  }
}

TEST(ToNumber, ABadTextTakesItsElementAlone) {
  EXPECT_THAT(elements_of(numbers_of({"1", "two", "3"}, at::kLong)),
              ElementsAre("1", "error invalid_argument", "3"));
}

TEST(ToNumber, AnErrorNamesTextFieldAndElement) {
  const Dataset priced =
      Dataset::from_tensor_slices(Nest::map({{"price", StringTensor({3}, {"1", "2", "3 EUR"})}}))
          .map(to_number("price", {.dtype = at::kInt}));
  Iterator iterator = priced.iterator();
  iterator.get_next();
  iterator.get_next();
  const Error error = error_of([&] { iterator.get_next(); });
  EXPECT_THAT(error.message(),
              HasSubstr("[data.to_number] expected int32 in field 'price', got '3 EUR' (value 0)"));
  EXPECT_THAT(error.what(), HasSubstr("mapping field 'price' of element 2"));
}

TEST(ToNumber, InABatchItNamesTheValue) {
  Iterator iterator = Dataset::from_tensor_slices(StringTensor({3}, {"1", "2", "3 EUR"}))
                          .batch(3)
                          .map(to_number({}))
                          .iterator();
  EXPECT_THAT(error_of([&] { iterator.get_next(); }).message(),
              HasSubstr("[data.to_number] expected float32 in the element, got '3 EUR' (value 2)"));
}

TEST(ToNumber, WantsADtypeItKnows) {
  EXPECT_THAT(error_of([] { to_number(0, {.dtype = at::kByte}); }).message(),
              AllOf(HasSubstr("[data.to_number] expected .dtype float32, float64, int32 or int64"),
                    HasSubstr("got uint8")));
}

}  // namespace
}  // namespace cohort::data
