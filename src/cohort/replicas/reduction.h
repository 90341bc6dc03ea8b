// SPDX-License-Identifier: Apache-2.0
// The arithmetic of reduce() and all_reduce().
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "cohort/collective/group.h"

namespace cohort::internal {

// Combines the values of replicas, and before that, if there are axes, the elements of each along
// these axes. A replica contributes parts, which are added up over the replicas:
//
//   total = reduction.result(reduction.sum({reduction.parts(a), reduction.parts(b)}));
//
// The rows of sparse COO tensors are collected, duplicates included; to_dense() adds them. "Added"
// means for max and min that the larger or the smaller one is taken, NaN if one is NaN.
class Reduction {
 public:
  // `call` is for messages: "strategy.reduce".
  Reduction(ReduceOp op, std::optional<Axes> axes, std::string_view call = "strategy.reduce",
            CrossDeviceOps cross_device_ops = CrossDeviceOps::reduction_to_one_device)
      : op_(op), axes_(std::move(axes)), call_(call), cross_device_ops_(cross_device_ops) {
    if (axes_ && axes_->is_none()) axes_.reset();
  }

  // A part, and for a mean the number of elements or replicas in it. It has a dtype that does not
  // wrap or round more than the result.
  struct Parts {
    at::Tensor value;  // of a sparse tensor: its rows
    std::int64_t count = 1;
    at::ScalarType type = at::ScalarType::Float;  // of the component
    at::Tensor indices = {};                      // of a sparse tensor: where the rows are
    std::vector<std::int64_t> sizes = {};         // and the shape of the whole
    bool is_sparse() const { return indices.defined(); }
  };
  // Throws invalid_argument for strings, bool and undefined tensors, and for an axis that the
  // tensor does not have, and for max and min of complex numbers; unimplemented for a sparse tensor
  // and an axis, or max or min.
  Parts parts(const at::Tensor& component) const;
  // Adds dense values in a balanced tree (left_of_tree()). The sum is on the device of the first
  // one. Parts without a value count as nothing;
  // at least one has a value. Throws invalid_argument if shapes, types or layouts differ.
  Parts sum(const std::vector<Parts>& all) const;
  // Throws invalid_argument for a sum of integers that their type cannot hold.
  at::Tensor result(const Parts& sum) const;
  // The result of the parts of these values.
  at::Tensor of(const std::vector<at::Tensor>& values) const;

 private:
  bool is_extreme() const { return op_ == ReduceOp::max || op_ == ReduceOp::min; }
  at::Tensor extreme_along(const at::Tensor& component,
                           const std::vector<std::int64_t>& axes) const;
  std::vector<std::int64_t> checked_axes(const at::Tensor& component) const;
  at::ScalarType working_type(at::ScalarType type) const;
  Parts sparse_parts(const at::Tensor& component) const;
  void check_alike(const Parts& first, const Parts& next, std::size_t replica) const;

  ReduceOp op_;
  std::optional<Axes> axes_;
  std::string_view call_;
  CrossDeviceOps cross_device_ops_;
};

// The size of the left part when `count` >= 2 values are added in a balanced tree. So the sum of 4
// values has the same bits if one replica has 4, two have 2 each, or four have one each.
std::size_t left_of_tree(std::size_t count);

// The remedy if replicas have gradients of other variables; for messages.
inline constexpr std::string_view kRequiresGradRemedy =
    "; if requires_grad_() was called outside of run(), it changed replica 0's component alone: "
    "call it inside of run()";

// The sum of gradients before it is rounded to their type, in that tree and in memory of its own,
// or, if `are_temporary`, perhaps in that of a gradient. Undefined ones count as zero; if all are,
// it has no value. Throws as Reduction does; `call` is for messages.
Reduction::Parts sum_of_gradient_parts(
    const std::vector<at::Tensor>& gradients, std::string_view call,
    CrossDeviceOps cross_device_ops = CrossDeviceOps::reduction_to_one_device,
    bool are_temporary = false);
// The gradient; undefined if the sum has no value.
at::Tensor gradient_of_sum(const Reduction::Parts& sum);
// The sum of gradients, in that tree and in memory of its own. Undefined ones count as zero; if all
// are, so is the sum. Throws as Reduction does; `call` is for messages.
at::Tensor sum_of_gradients(const std::vector<at::Tensor>& gradients, std::string_view call);

}  // namespace cohort::internal
