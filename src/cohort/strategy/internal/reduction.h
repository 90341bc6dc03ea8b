// SPDX-License-Identifier: Apache-2.0
// The arithmetic of Strategy::reduce().
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

#include "cohort/collective/reduce_op.h"

namespace cohort::internal {

// Combines the values of replicas, and before that, if there are axes, the elements of each along
// these axes. A replica contributes parts, which are added up over the replicas:
//
//   total = reduction.result(reduction.sum({reduction.parts(a), reduction.parts(b)}));
class Reduction {
 public:
  Reduction(ReduceOp op, std::optional<Axes> axes) : op_(op), axes_(std::move(axes)) {}

  // A part, and for a mean the number of elements or replicas in it. Means are computed in a type
  // that does not wrap or round more than the result.
  struct Parts {
    at::Tensor value;
    std::int64_t count = 1;
    at::ScalarType type;  // of the component
  };
  // Throws invalid_argument for strings and bool, and for an axis that the tensor does not have.
  Parts parts(const at::Tensor& component) const;
  // Throws invalid_argument if shapes or types differ.
  Parts sum(const std::vector<Parts>& all) const;
  at::Tensor result(const Parts& sum) const;

 private:
  std::vector<std::int64_t> checked_axes(const at::Tensor& component) const;

  ReduceOp op_;
  std::optional<Axes> axes_;
};

}  // namespace cohort::internal
