// SPDX-License-Identifier: Apache-2.0
// Operations that a running program requests from its process, because ATen operators cannot do
// them: draws from iterators and updates of variables.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cohort/core/export.h"

namespace cohort::internal {

// Among the ids of rows, and the keys of tables, this one stands for no row.
inline constexpr std::int64_t kNoRow = std::numeric_limits<std::int64_t>::min();

// Names the optimizer whose slots a step of an update rule uses.
struct SlotOwner {
  std::string_view rule;  // "adam"
  std::string_view optimizer;
  bool lazy_rows = false;
};

// The slots of an optimizer for one variable, in the rule's order.
struct OptimizerSlots {
  std::string optimizer = {};
  std::string rule = {};
  std::vector<at::Tensor> tensors = {};
};

// A value type. variable/effect_kinds.h says what each kind has and does.
struct Effect {
  // The numbers are those of the wire.
  enum class Kind : std::uint8_t {
    apply,  // one step of an update rule
    assign,
    assign_add,
    assign_sub,
    scatter_add,
    merge_average,  // assigns if the version equals `version`, else moves towards the statistic
    scatter_sub,
    scatter_mul,
    scatter_div,
    scatter_min,
    scatter_max,
    scatter_update
  };
  static constexpr Kind kLastKind = Kind::scatter_update;

  Kind kind = Kind::assign;
  std::uint64_t variable = 0;       // an index of a program's table, or the number on servers
  std::string rule;                 // apply only, as optimizer
  std::string optimizer;            // the optimizer whose slots are used
  bool lazy_rows = false;           // apply with row_ids: the other rows stay, whatever the rule is
  std::vector<double> hyper;        // apply: in the rule's order; merge_average: the momentum
  at::Tensor row_ids;               // int64 [n]; undefined: all rows
  std::vector<at::Tensor> tensors;  // gradient | value | rows | value, statistic
  std::uint64_t version = 0;        // merge_average: the version that was read

  // The size of the tensors.
  COHORT_API std::uint64_t bytes() const;
};

// `row_ids`: of a change of rows.
inline Effect write_effect(Effect::Kind kind, at::Tensor value, at::Tensor row_ids = {}) {
  return {.kind = kind, .row_ids = std::move(row_ids), .tensors = {std::move(value)}};
}
inline Effect apply_effect(const SlotOwner& owner, std::vector<double> hyper, at::Tensor gradient) {
  return {.kind = Effect::Kind::apply,
          .rule = std::string(owner.rule),
          .optimizer = std::string(owner.optimizer),
          .lazy_rows = owner.lazy_rows,
          .hyper = std::move(hyper),
          .tensors = {std::move(gradient)}};
}

// Makes an update with a sparse gradient, which has one sparse axis, one of some rows: their ids
// and values. A sparse tensor cannot be sent.
COHORT_API void separate_rows(Effect& effect);

// One handler serves one run. Used only from the thread that runs the program. `variable` and
// `resource` are indices into the program's tables.
class COHORT_API EffectHandler {
 public:
  virtual ~EffectHandler() = default;
  // The fields of the next element. Throws out_of_range at the end of the data.
  virtual std::vector<at::Tensor> iterator_next(std::int64_t resource) = 0;
  // Updates the variable of the program's table where it is stored. The handler may keep the
  // tensors: nothing writes to them afterwards. For a merge_average the run computed tensors[0] =
  // old + momentum * (tensors[1] - old) from the value that it read; if a different run has changed
  // the variable since then, the same formula is applied to its current value. Where no other run
  // writes, assigning tensors[0] is correct.
  virtual void update(Effect effect) = 0;
  // Some rows of a variable.
  struct RowRead {
    std::int64_t variable = 0;
    at::Tensor ids = {};  // int64 [n], each once
  };
  struct Read {
    std::vector<at::Tensor> rows;       // [n, …] for each RowRead
    std::vector<at::Tensor> variables;  // as next_segment() returns them
  };
  // Reads rows and whole variables in one exchange. The default throws unimplemented.
  virtual Read read(std::span<const RowRead> rows, std::span<const std::int64_t> variables);
  // Makes the call that function::Trace::call_host() has recorded under this number in this
  // process, and returns its results, to which the run may write. The handler may keep `values`: no
  // operator writes to them afterwards. The default throws unimplemented.
  virtual std::vector<at::Tensor> call(std::int64_t number, std::vector<at::Tensor> values);
  // Called before the step reads variables that it has updated. Applies all updates so far, reads
  // these variables again and returns their values, in this order, in memory to which the run may
  // write. The default throws unimplemented.
  virtual std::vector<at::Tensor> next_segment(std::span<const std::int64_t> variables);
  // Applies all updates so far, and waits until the variable, which has one number, is above 0. The
  // default throws unimplemented.
  virtual void wait_until_positive(std::int64_t variable);
  // Called before each operator. Throws cancelled if nobody needs the run any more.
  virtual void check_cancelled() {}
};

}  // namespace cohort::internal
