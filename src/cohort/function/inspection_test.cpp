// SPDX-License-Identifier: Apache-2.0
#include "cohort/function/inspection.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>

#include <limits>

#include "cohort/core/log.h"
#include "cohort/function/step_scope.h"
#include "cohort/function/tracer/cases_for_tests.h"
#include "cohort/testing/throws_error.h"

namespace cohort::function {
namespace {

using cohort::testing::throws_error;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;

class Inspection : public TraceCase {
 protected:
  Inspection() {
    set_log_sink([this](LogLevel, std::string_view line) { lines_.emplace_back(line); });
  }
  ~Inspection() override {
    set_log_sink(nullptr);
    set_log_level(LogLevel::warn);
  }
  // The program of `body` for a 2x2 tensor, run with `input`.
  void run(const at::Tensor& input, const std::function<void(at::Tensor)>& body) {
    const Traced made =
        traced({normal({2, 2}, 0)}, {normal({2, 2}, 1)}, [&](const Tensors& inputs) {
          body(inputs[0]);
          return Tensors{};
        });
    EXPECT_THAT(lines_, ElementsAre()) << "a trace prints nothing";
    for (const auto& used : made.info.variables) EXPECT_FALSE(used.is_updated) << used.name;
    replay(made, {input});
  }

  std::vector<std::string> lines_;
};

const at::Tensor& four() {
  static const at::Tensor values = at::arange(1, 5, at::kFloat).view({2, 2});
  return values;
}

TEST_F(Inspection, PrintsHereAndNowOutsideOfAFunction) {
  print(four().mul(0.5), "half");
  print(at::arange(2).eq(0), "mask");
  print(at::arange(10), "ids");
  print(at::arange(3)._neg_view(), "negated");  // the line had the numbers of its memory
  EXPECT_THAT(lines_, ElementsAre(EndsWith("half = float32[2, 2] {0.5, 1, 1.5, 2}"),
                                  EndsWith("mask = bool[2] {true, false}"),
                                  EndsWith("ids = int64[10] {0, 1, 2, 3, 4, 5, 6, 7, …}"),
                                  EndsWith("negated = int64[3] {0, -1, -2}")));
}

TEST_F(Inspection, PrintsAtEveryLevelButOff) {
  set_log_level(LogLevel::error);
  print(four(), "x");
  set_log_level(LogLevel::off);
  print(four(), "x");
  EXPECT_EQ(lines_.size(), 1U);
}

TEST_F(Inspection, PrintsTheClosure) {
  const StepScope step(17, "train");
  print(four(), "x");
  EXPECT_THAT(lines_.at(0), HasSubstr("closure 17 of 'train': x = float32[2, 2] {1, 2, 3, 4}"));
}

TEST_F(Inspection, PrintsTheValuesOfItsPlaceInTheProgram) {
  const at::Tensor w = variable("w", at::zeros({2, 2}));
  run(four(), [&](at::Tensor x) {
    const at::Tensor y = x.add(w);
    print(y, "before");
    y.mul_(10);
    print(y.sum(), "after");
    print(w, "w");
  });
  EXPECT_THAT(lines_, ElementsAre(EndsWith("before = float32[2, 2] {1, 2, 3, 4}"),
                                  EndsWith("after = float32[] {100}"),
                                  EndsWith("w = float32[2, 2] {0, 0, 0, 0}")));
}

TEST_F(Inspection, FiniteValuesPass) {
  check_finite(four(), "x");
  check_finite(at::arange(3), "ids");
  check_finite(at::zeros({0, 3}), "nothing");
  run(four(), [](at::Tensor x) { check_finite(x.log(), "log"); });
  EXPECT_THAT(lines_, ElementsAre());
}

TEST_F(Inspection, TheFirstValueThatIsNotFiniteIsNamed) {
  at::Tensor bad = at::zeros({3, 4});
  bad[1][2] = std::nan("");
  bad[2][0] = -std::numeric_limits<float>::infinity();
  EXPECT_THAT([&] { check_finite(bad, "loss"); },
              throws_error(ErrorCode::invalid_argument,
                           "'loss', got 2 of 12 that are not in float32[3, 4] {0, 0, 0, 0, 0, 0, "
                           "nan, 0, …}; the first one is at [1, 2], float32[] {nan}"));
}

// The error did not name the closure.
TEST_F(Inspection, AValueThatIsNotFiniteNamesItsClosure) {
  const function::StepScope step(17, "train");
  EXPECT_THAT([] { check_finite(four().log().neg().sqrt(), "loss"); },
              throws_error(ErrorCode::invalid_argument, "closure 17 of 'train': expected finite"));
}

TEST_F(Inspection, AProgramEndsWithTheError) {
  const auto body = [](at::Tensor x) {
    check_finite(x.log(), "log of x");
    print(x, "x");
  };
  try {
    run(four().sub(1), body);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    EXPECT_EQ(error.cause(), ErrorCause::application);
    EXPECT_THAT(error.message(), AllOf(HasSubstr("'log of x', got 1 of 4"), HasSubstr("at [0, 0]"),
                                       HasSubstr("-inf")));
  }
  EXPECT_THAT(lines_, ElementsAre()) << "what comes after it does not run";
}

TEST_F(Inspection, UndefinedAndSparseTensorsAreRefused) {
  EXPECT_THAT([] { print(at::Tensor(), "g"); },
              throws_error(ErrorCode::invalid_argument, "got an undefined one (labelled 'g')"));
  EXPECT_THAT([] { check_finite(four().to_sparse(), "g"); },
              throws_error(ErrorCode::invalid_argument, "to_dense()"));
}

}  // namespace
}  // namespace cohort::function
