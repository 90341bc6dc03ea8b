// SPDX-License-Identifier: Apache-2.0
// Tensors whose memory is special: without elements, without an address, shared.
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <gmock/gmock.h>

#include "cohort/function/internal/tracer/cases_for_tests.h"

namespace cohort::function {
namespace {

using TraceMemoryTest = TraceCase;

// The trace read memory at address 0: an empty part has none of its own, but all of its base's
// bytes.
TEST_F(TraceMemoryTest, EmptyPartsOfWhatAFactoryMade) {
  expect_equal_to_eager({3}, [](at::Tensor x) {
    return at::zeros({4}).slice(0, 2, 2).add(x.slice(0, 0, 0)).sum().add(x);
  });
}

// It was refused as a write into an argument or a variable.
TEST_F(TraceMemoryTest, AViewReshapedInPlaceIsNoWrite) {
  at::Tensor w = parameter("w", {3, 2});
  expect_equal_to_eager({4, 3}, [&](at::Tensor x) {
    return w.detach().t_().matmul(x.view({4, 3}).t_()).unsqueeze_(0);
  });
}

TEST_F(TraceMemoryTest, WhatIsTheUsersKeepsItsShape) {
  at::Tensor w = parameter("w", {3, 2}), constant = at::zeros({2, 3});
  const auto tries = {refusal([&](at::Tensor x) { return w.squeeze_().sum().add(x); }),
                      refusal([&](at::Tensor x) { return constant.t_().sum().add(x); }),
                      refusal([&](at::Tensor x) { return x.t_(); })};
  for (const std::string& text : tries) EXPECT_THAT(text, ::testing::HasSubstr("it writes in"));
  EXPECT_EQ(w.dim(), 2);
  EXPECT_EQ(constant.size(0), 2);
}

}  // namespace
}  // namespace cohort::function
