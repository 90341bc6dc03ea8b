// SPDX-License-Identifier: Apache-2.0
// Which arguments a parameter takes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>

#include "cohort/function/function.h"
#include "cohort/testing/throws_error.h"

namespace cohort {
namespace {

using ::testing::HasSubstr;
using testing::throws_error;

TEST(FunctionArguments, NumbersConvertAsInCpp) {
  EXPECT_EQ(Function([](double x) { return x / 2; })(3).real(), 1.5);
  EXPECT_EQ(Function([](float x) { return double{x}; })(0.5).real(), 0.5);
  EXPECT_EQ(Function([](float x) { return double{x}; })(0.5F).real(), 0.5);
  EXPECT_EQ(Function([](std::size_t n) { return n + 1; })(std::size_t{4}).integer(), 5);
  EXPECT_EQ(Function([](std::uint8_t n) { return int{n}; })(255).integer(), 255);
}

// An int took the lowest 32 bits of what did not fit.
TEST(FunctionArguments, NumbersThatDoNotFitAreRefused) {
  const Function narrow([](int n) { return n; }), unsigned_one([](std::uint32_t n) { return n; });
  EXPECT_EQ(narrow(std::numeric_limits<int>::max()).integer(), std::numeric_limits<int>::max());
  EXPECT_THAT([&] { narrow(std::int64_t{1} << 32); },
              throws_error(ErrorCode::invalid_argument, "got 4294967296"));
  EXPECT_THAT([&] { unsigned_one(-1); }, throws_error(ErrorCode::invalid_argument, "got -1"));
  EXPECT_THAT([] { return Nest(std::numeric_limits<std::uint64_t>::max()); },
              throws_error(ErrorCode::invalid_argument, "below 2^63"));
}

TEST(FunctionArguments, AnErrorNamesTheArgument) {
  try {
    Function([](int n, double x) { return n * x; })(1, "2");
    FAIL() << "a text was taken for a number";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("while taking argument 1"));
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
  }
}

}  // namespace
}  // namespace cohort
