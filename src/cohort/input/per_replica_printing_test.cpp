// SPDX-License-Identifier: Apache-2.0
// Elements of a distributed dataset as text.
#include <ATen/ops/arange.h>
#include <gtest/gtest.h>

#include <sstream>

#include "cohort/core/text/printing.h"
#include "cohort/input/per_replica.h"

namespace cohort {
namespace {

// It did not compile: a nest could not be printed.
TEST(PerReplicaPrinting, AnElementShowsTheNestOfEachReplica) {
  const PerReplica<Nest> wrapped(
      {Nest::tuple({at::arange(2), 1}), Nest::tuple({at::arange(1), 2})});
  std::ostringstream out;
  out << wrapped << '\n' << PerReplica<Nest>::bare(at::arange(2)) << '\n';
  out << DistributedElement(wrapped, {.examples = {2, 1}, .global_num_examples = {}});
  EXPECT_EQ(out.str(),
            "PerReplica:{0: (int64[2] [0, 1], 1), 1: (int64[1] [0], 2)}\n"
            "int64[2] [0, 1]\n"
            "PerReplica:{0: (int64[2] [0, 1], 1), 1: (int64[1] [0], 2)}");
}

}  // namespace
}  // namespace cohort
