// SPDX-License-Identifier: Apache-2.0
#include "cohort/function/tracing_mode.h"

#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include "cohort/function/autocast.h"
#include "cohort/function/tracer/cases_for_tests.h"

namespace cohort::function {
namespace {

TEST(TracingModeTest, AScopeSetsAllOfItAndPutsItBack) {
  const TracingMode before = TracingMode::current();
  EXPECT_EQ(before, TracingMode()) << "LibTorch's own defaults";
  const TracingMode modes[] = {{.is_grad_enabled = false},
                               {.is_inference = true},
                               {.is_grad_enabled = false, .is_inference = true},
                               {.is_autocast_enabled = true, .is_autocast_cached = false}};
  for (const TracingMode& outer : modes) {
    for (const TracingMode& inner : modes) {
      const TracingModeScope scope(outer);
      {
        const TracingModeScope nested(inner);
        EXPECT_EQ(TracingMode::current(), inner);
        EXPECT_EQ(at::ones({1}).is_inference(), inner.is_inference);
      }
      EXPECT_EQ(TracingMode::current(), outer);
    }
    EXPECT_EQ(TracingMode::current(), before);
  }
}

class TracingModeOfTrace : public TraceCase {};

TEST_F(TracingModeOfTrace, ABodyThatLeavesAnotherModeChangesNeitherPassNorCaller) {
  std::vector<TracingMode> seen;
  traced({at::ones({2, 2})}, {at::ones({2, 2})}, [&](const Tensors& in) {
    seen.push_back(TracingMode::current());
    set_autocast_enabled(true);
    c10::GradMode::set_enabled(false);
    return Tensors{at::mm(in[0], in[0])};
  });
  EXPECT_EQ(seen, std::vector<TracingMode>(2));
  EXPECT_EQ(TracingMode::current(), TracingMode());
}

}  // namespace
}  // namespace cohort::function
