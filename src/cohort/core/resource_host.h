// SPDX-License-Identifier: Apache-2.0
// What a running program asks of the place it runs in: the effects that ATen operators cannot have.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "cohort/core/export.h"

namespace cohort {

enum class AssignKind : std::uint8_t { assign = 0, add = 1, sub = 2 };

// One host serves one run; called only from the thread that runs the program.
// `variable` and `resource` are the indices of the program's own tables.
class COHORT_API ResourceHost {
 public:
  virtual ~ResourceHost() = default;
  // The fields of the next element; out_of_range at the end of the data.
  virtual std::vector<at::Tensor> iterator_next(std::int64_t resource) = 0;
  // One step of an update rule, as "sgd", next to the variable. `hyper` are 0-dim float64 tensors
  // in the rule's order, to be read before this returns. `gradient`, and `value`, `ids` and `rows`
  // below, may be kept: nothing writes there afterwards.
  virtual void apply(std::string_view rule, std::int64_t variable, at::Tensor gradient,
                     std::span<const at::Tensor> hyper) = 0;
  virtual void assign(AssignKind kind, std::int64_t variable, at::Tensor value) = 0;
  // Rows of a table: [ids..., width].
  virtual at::Tensor gather(std::int64_t variable, const at::Tensor& ids) = 0;
  virtual void scatter_add(std::int64_t variable, const at::Tensor& ids,
                           const at::Tensor& rows) = 0;
  // The step reads variables that it has updated: everything asked for so far happens, then these
  // variables are read again. Their values, in this order, in memory that the run may write.
  // Without an implementation: unimplemented.
  virtual std::vector<at::Tensor> next_segment(std::span<const std::int64_t> variables);
  // The run has moved an average by `momentum`, in (0, 1], from what it read towards `statistic`,
  // which gave `value`. Where others have moved the variable since, it moves by `momentum` from
  // there. Without an implementation: assigns `value`, which is right where nobody else writes.
  virtual void merge_average(std::int64_t variable, at::Tensor value, at::Tensor statistic,
                             double momentum);
};

}  // namespace cohort
