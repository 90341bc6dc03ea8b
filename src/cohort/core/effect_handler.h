// SPDX-License-Identifier: Apache-2.0
// Operations that a running program requests from its process, because ATen operators cannot do
// them: draws from iterators and updates of variables.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "cohort/core/export.h"

namespace cohort::internal {

enum class AssignKind : std::uint8_t { assign = 0, add = 1, sub = 2 };

// Names the optimizer whose slots a step of an update rule uses.
struct SlotOwner {
  std::string_view rule;  // "adam"
  std::string_view optimizer;
};

// One handler serves one run. Used only from the thread that runs the program. `variable` and
// `resource` are indices into the program's tables.
class COHORT_API EffectHandler {
 public:
  virtual ~EffectHandler() = default;
  // The fields of the next element. Throws out_of_range at the end of the data.
  virtual std::vector<at::Tensor> iterator_next(std::int64_t resource) = 0;
  // Runs one step of an update rule where the variable is stored. `hyper` are 0-dim float64 tensors
  // in the rule's order; they must be read before this returns. The handler may keep `gradient`,
  // and `value`, `ids` and `rows` below: nothing writes to them afterwards.
  virtual void apply(const SlotOwner& owner, std::int64_t variable, at::Tensor gradient,
                     std::span<const at::Tensor> hyper) = 0;
  virtual void assign(AssignKind kind, std::int64_t variable, at::Tensor value) = 0;
  // Rows of a table: [ids..., width].
  virtual at::Tensor gather(std::int64_t variable, const at::Tensor& ids) = 0;
  virtual void scatter_add(std::int64_t variable, const at::Tensor& ids,
                           const at::Tensor& rows) = 0;
  // Makes the call that function::Trace::call_host() has recorded under this number in this
  // process, and returns its results, to which the run may write. The handler may keep `values`: no
  // operator writes to them afterwards. The default throws unimplemented.
  virtual std::vector<at::Tensor> call(std::int64_t number, std::vector<at::Tensor> values);
  // Called before the step reads variables that it has updated. Applies all updates so far, reads
  // these variables again and returns their values, in this order, in memory to which the run may
  // write. The default throws unimplemented.
  virtual std::vector<at::Tensor> next_segment(std::span<const std::int64_t> variables);
  // Merges the update of a running average (batch norm). The run computed
  // value = old + momentum * (statistic - old) from the value that it read, with momentum in (0,
  // 1]. If a different run has changed the variable since then, the same formula is applied to its
  // current value. The default assigns `value`, which is correct if no other run writes.
  virtual void merge_average(std::int64_t variable, at::Tensor value, at::Tensor statistic,
                             double momentum);
};

}  // namespace cohort::internal
