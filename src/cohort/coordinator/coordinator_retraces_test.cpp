// SPDX-License-Identifier: Apache-2.0
// When a coordinator traces a function again: frozen values never become stale silently, and
// nothing else costs a trace.
#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/ones.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/ScalarTypeToTypeMeta.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "cohort/core/log.h"
#include "cohort/testing/coordinator_fixture.h"
#include "cohort/testing/throws_error.h"

namespace cohort {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::throws_error;

class CoordinatorRetraces : public testing::CoordinatorFixture {
 protected:
  CoordinatorRetraces() {
    set_log_sink([this](LogLevel level, std::string_view line) {
      if (level == LogLevel::warn && line.find("was traced") != std::string_view::npos)
        warnings.emplace_back(line);
    });
  }
  ~CoordinatorRetraces() override { set_log_sink(nullptr); }
  std::uint64_t traces() {
    EXPECT_TRUE(coordinator.join(std::chrono::seconds(60)));
    return coordinator.statistics().traces;
  }

  std::vector<std::string> warnings;
  ClusterCoordinator coordinator{strategy()};
};

TEST_F(CoordinatorRetraces, ANumberForATensorParameterIsATensor) {
  std::vector<at::ScalarType> types;
  const Function step([&](at::Tensor rate, double frozen) {
    types.push_back(rate.scalar_type());
    return rate * frozen;
  });
  for (int i = 0; i < 40; ++i) coordinator.schedule(step, 0.1 * i, 2.0);
  EXPECT_EQ(traces(), 1U);
  coordinator.schedule(step, at::full({}, 0.5, at::kDouble), 2.0);
  EXPECT_EQ(traces(), 1U);
  coordinator.schedule(step, 3, 2.0);
  coordinator.schedule(step, true, 2.0);
  EXPECT_EQ(traces(), 3U);
  EXPECT_THAT(types,
              ElementsAre(at::kDouble, at::kDouble, at::kLong, at::kLong, at::kBool, at::kBool));
  EXPECT_TRUE(warnings.empty());
  EXPECT_EQ(step(0.5, 4.0).tensor().item<double>(), 2) << "called here and now";
}

TEST_F(CoordinatorRetraces, TheFifthTraceOverAllSignaturesWarnsOnce) {
  const Function step([](at::Tensor x, double rate) { return x * rate; }, {.name = "train"});
  for (int i = 0; i < 10; ++i) coordinator.schedule(step, at::ones({2}), 0.5 + i);
  EXPECT_EQ(traces(), 10U);
  EXPECT_THAT(warnings, ElementsAre(AllOf(HasSubstr("'train' was traced 5 times"),
                                          HasSubstr("argument 1 was 3.5 and is now 4.5"),
                                          HasSubstr("declare it at::Tensor"))));
}

// Regression: the advice was "batch with drop_remainder" for batches that were padded to different
// lengths.
TEST_F(CoordinatorRetraces, TheWarningNamesBothShapesAndTheRemedyThatFits) {
  const Function step([](at::Tensor x) { return x.sum(); }, {.name = "sum"});
  for (int i = 1; i <= 5; ++i) coordinator.schedule(step, at::ones({8, i}));
  EXPECT_EQ(traces(), 5U);
  EXPECT_THAT(warnings,
              ElementsAre(AllOf(HasSubstr("argument 0 was float32[8, 4] and is now float32[8, 5]"),
                                HasSubstr("padded_batch() does with padded_shapes"),
                                ::testing::Not(HasSubstr("drop_remainder")))));
}

TEST_F(CoordinatorRetraces, HostNumbersAreComparedBitByBit) {
  const Function step([](double x) { return at::ones({2}).mul(x); });
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (int i = 0; i < 3; ++i) coordinator.schedule(step, nan);
  EXPECT_EQ(traces(), 1U);
  coordinator.schedule(step, 0.0);
  coordinator.schedule(step, -0.0);
  EXPECT_EQ(traces(), 3U);
}

TEST_F(CoordinatorRetraces, ACapturedTensorThatWasWrittenOrReplacedIsTracedAgain) {
  at::Tensor scale = at::full({2}, 2.0);
  std::vector<double> seen;
  const Function step([&](at::Tensor x) {
    seen.push_back(scale[0].data().data_ptr<float>()[0]);
    return x * scale;
  });
  const auto schedule = [&] { coordinator.schedule(step, at::ones({2})); };
  schedule();
  schedule();
  EXPECT_EQ(traces(), 1U);
  scale.fill_(3);
  schedule();
  schedule();
  EXPECT_EQ(traces(), 2U);
  scale = at::full({2}, 4.0);
  schedule();
  schedule();
  EXPECT_EQ(traces(), 3U);
  EXPECT_THAT(seen, ElementsAre(2, 2, 3, 3, 4, 4));
  EXPECT_EQ(worker.functions().size(), 3U);
}

TEST_F(CoordinatorRetraces, FlagsOfVariablesArePartOfTheSignature) {
  const Variable w = strategy().variable("w", at::ones({2})),
                 v = strategy().variable("v", at::ones({2}));
  std::vector<bool> seen;
  const Function step([&](at::Tensor x) {
    seen.push_back((x * w.tensor()).requires_grad());
    return x * w.tensor();
  });
  for (const bool flag : {true, false, true, false}) {
    w.tensor().requires_grad_(flag);
    coordinator.schedule(step, at::ones({2}));
  }
  v.tensor().requires_grad_(!v.tensor().requires_grad());
  coordinator.schedule(step, at::ones({2}));
  EXPECT_EQ(traces(), 2U)
      << "both programs are kept, and the variable that it does not use is none";
  EXPECT_THAT(seen, ElementsAre(true, true, false, false));
}

TEST_F(CoordinatorRetraces, TheDefaultTypeIsPartOfTheSignature) {
  const Function step([] { return at::ones({2}); });
  coordinator.schedule(step);
  const auto before = c10::get_default_dtype();
  c10::set_default_dtype(c10::scalarTypeToTypeMeta(at::kDouble));
  coordinator.schedule(step);
  c10::set_default_dtype(before);
  coordinator.schedule(step);
  EXPECT_EQ(traces(), 2U);
}

TEST_F(CoordinatorRetraces, AHostResultThatDependsOnDataIsRefused) {
  const Function step(
      [](at::Tensor x) { return std::tuple<at::Tensor, double>(x * 2, x.data_ptr<float>()[0]); });
  EXPECT_THAT([&] { coordinator.schedule(step, at::ones({2})); },
              throws_error(ErrorCode::invalid_argument, "returned another number or text"));
}

}  // namespace
}  // namespace cohort
