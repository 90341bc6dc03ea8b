// SPDX-License-Identifier: Apache-2.0
// Gradients of which only some rows are known, and all others are zero: sparse COO tensors with one
// sparse axis, as the embeddings of LibTorch make them with sparse(true).
//
// Sums of rows have the bits of the dense gradient: the same additions in the same order, from +0.
#pragma once

#include <ATen/core/Tensor.h>

#include <span>

#include "cohort/core/export.h"
#include "cohort/variable/variable_state.h"

namespace cohort::variable {

COHORT_API bool is_row_gradient(const at::Tensor& gradient);

// The tensors of a row gradient. No operator runs for them, so that a trace records none.
struct GradientRows {
  at::Tensor ids;     // int64 [1, n]; the ids may be in any order, and come several times
  at::Tensor values;  // [n, …]
};
COHORT_API GradientRows rows_of(const at::Tensor& gradient);
// `ids`: int64 [n].
COHORT_API at::Tensor row_gradient(const at::Tensor& ids, const at::Tensor& values,
                                   at::IntArrayRef sizes);
// The same of rows as sum_rows() returns them.
COHORT_API at::Tensor summed_row_gradient(const at::Tensor& ids, const at::Tensor& values,
                                          at::IntArrayRef sizes);

// The same gradient with each row once, in ascending order; the values of a row that comes several
// times are added in the order in which they come. Throws invalid_argument for an id that is no
// row.
COHORT_API at::Tensor sum_rows(const at::Tensor& gradient);
// The same for a gradient with any number of rows; those that are not of float32 or float64, or not
// on the CPU, stay as they are.
COHORT_API GradientRows sum_rows(const GradientRows& gradient);
// Whether these ids, int64 [n], are those of a gradient from sum_rows().
COHORT_API bool are_summed(const at::Tensor& ids);
// The sum of two gradients from sum_rows(); each row once, in ascending order.
COHORT_API at::Tensor add_rows(const at::Tensor& left, const at::Tensor& right);
// The sum over several gradients from sum_rows(), in the tree in which dense ones are added. At
// least one is defined; undefined ones count as zero.
COHORT_API at::Tensor add_all_rows(std::span<const at::Tensor> gradients);
// The dense tensor of any sparse COO gradient. Use this in place of to_dense(), with which LibTorch
// 1.13 loses one number that autograd has expanded.
COHORT_API at::Tensor dense_of(const at::Tensor& gradient);

// A gradient as VariableState::reserve() takes it: row-major, without a graph, and with each row
// once. It is dense if the rule changes the other rows, too.
COHORT_API at::Tensor prepared_gradient(const SlotKey& key, const at::Tensor& gradient,
                                        std::span<const double> hyper);

}  // namespace cohort::variable
