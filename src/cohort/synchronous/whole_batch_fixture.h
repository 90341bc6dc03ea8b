// SPDX-License-Identifier: Apache-2.0
// For tests only: training on several replicas, to be compared with one process that has the whole
// batch.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/allclose.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "cohort/input/per_replica.h"
#include "cohort/strategy/synchronous_strategy.h"
#include "cohort/testing/cpu_devices.h"
#include "cohort/variable/variable.h"

namespace cohort::testing {

using Sizes = std::vector<std::int64_t>;
using Tensors = std::vector<at::Tensor>;

// How 12 rows are distributed to two and three replicas.
inline std::vector<Sizes> partitions() { return {{6, 6}, {11, 1}, {0, 12}, {3, 2, 7}}; }

inline PerReplica<at::Tensor> parts(const at::Tensor& whole, const Sizes& sizes) {
  return PerReplica<at::Tensor>(whole.split_with_sizes(sizes));
}

// A device for each part.
inline std::vector<std::string> devices_for(const Sizes& sizes) {
  return cpu_devices(static_cast<int>(sizes.size()));
}

inline Tensors values_of(const std::vector<Variable>& variables) {
  Tensors values;
  for (const Variable& variable : variables) values.push_back(variable.read().detach());
  return values;
}

inline void expect_close(const Tensors& got, const Tensors& expected, double tolerance) {
  ASSERT_EQ(got.size(), expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    EXPECT_TRUE(at::allclose(got[i], expected[i], tolerance, tolerance))
        << "tensor " << i << ": difference " << got[i].sub(expected[i]).abs().max().item<double>();
  }
}

}  // namespace cohort::testing
