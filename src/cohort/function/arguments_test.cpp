// SPDX-License-Identifier: Apache-2.0
// Which arguments a parameter accepts.
#include <ATen/ops/ones.h>
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

// An int got the lowest 32 bits of a number that did not fit.
TEST(FunctionArguments, NumbersThatDoNotFitAreRefused) {
  const Function narrow([](int n) { return n; }), unsigned_one([](std::uint32_t n) { return n; });
  EXPECT_EQ(narrow(std::numeric_limits<int>::max()).integer(), std::numeric_limits<int>::max());
  EXPECT_THAT([&] { narrow(std::int64_t{1} << 32); },
              throws_error(ErrorCode::invalid_argument, "got 4294967296"));
  EXPECT_THAT([&] { unsigned_one(-1); }, throws_error(ErrorCode::invalid_argument, "got -1"));
  EXPECT_THAT([] { return Nest(std::numeric_limits<std::uint64_t>::max()); },
              throws_error(ErrorCode::invalid_argument, "below 2^63"));
}

// The remedy was a wider type, where std::size_t has 64 bits.
TEST(FunctionArguments, ANegativeNumberForAnUnsignedParameterIsRefusedWithTheRemedy) {
  const Function step([](std::size_t n) { return n; });
  EXPECT_THAT([&] { step(-1); },
              throws_error(ErrorCode::invalid_argument,
                           "expected an integer that is not negative, got -1 for a parameter of an "
                           "unsigned type, as std::size_t; pass 0 or more, or declare the "
                           "parameter std::int64_t"));
  const Function small([](std::int8_t n) { return int{n}; });
  EXPECT_THAT([&] { small(-129); }, throws_error(ErrorCode::invalid_argument,
                                                 "expected an integer from -128 to 127, got -129"));
}

// All were called 'function'.
TEST(FunctionArguments, AFunctionWithoutANameIsNamedByItsPlace) {
  const Function step([](int n) { return n; });
  EXPECT_EQ(step.name(), "function at arguments_test.cpp:" + std::to_string(__LINE__ - 1));
  EXPECT_EQ(Function([] {}, {.name = "step"}).name(), "step");
  EXPECT_EQ(function::name_of_place("/usr/include/c++/12/optional", 7), "function");
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

// The error was "[core.nest] expected int, got text; ask kind() first", without the function and
// the argument.
TEST(FunctionArguments, OfAnotherTypeAreRefusedWithFunctionPositionAndBothTypes) {
  const Function step([](at::Tensor, std::int64_t, bool, double, const std::string&) {},
                      {.name = "train_step"});
  const at::Tensor x = at::ones({2});
  const auto refused = [](const char* text) {
    return throws_error(ErrorCode::invalid_argument, text);
  };
  EXPECT_NO_THROW(step(x, 1, true, 2, "text"));
  EXPECT_THAT([&] { step("ab", 1, true, 2.0, ""); },
              refused("[function.call] expected a tensor as argument 0 of 'train_step', got text; "
                      "pass a tensor, or change the type of the parameter"));
  EXPECT_THAT([&] { step(x, "1", true, 2.0, ""); },
              refused("expected an integer as argument 1 of 'train_step', got text"));
  EXPECT_THAT([&] { step(x, 1.5, true, 2.0, ""); },
              refused("expected an integer as argument 1 of 'train_step', got float"));
  EXPECT_THAT([&] { step(x, 1, 1, 2.0, ""); },
              refused("expected a bool as argument 2 of 'train_step', got int"));
  EXPECT_THAT(
      [&] {
        step(x, 1, true, Nest::list({x, x}), "");
      },
      refused("expected a number as argument 3 of 'train_step', got [tensor, tensor]"));
  EXPECT_THAT([&] { step(x, 1, true, 2.0, 3); },
              refused("expected a text as argument 4 of 'train_step', got int"));
  EXPECT_THAT([&] { step(x, 1, true); }, refused("'train_step' expected 5 arguments, got 3"));
}

TEST(FunctionArguments, NoexceptFunctionsHaveASignatureToo) {
  EXPECT_EQ(Function([](int n) noexcept { return n + 1; })(2).integer(), 3);
  EXPECT_EQ(Function([](int n) mutable noexcept { return ++n; })(2).integer(), 3);
}

}  // namespace
}  // namespace cohort
