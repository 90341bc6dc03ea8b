// SPDX-License-Identifier: Apache-2.0
#include "cohort/variable/state_walk.h"

#include <ATen/core/TensorBody.h>
#include <ATen/ops/empty.h>

#include <utility>

#include "cohort/core/error.h"
#include "cohort/variable/variable_home.h"

namespace cohort {
namespace {

at::Tensor memory_for(const at::Tensor& rows, std::int64_t count) {
  std::vector<std::int64_t> sizes = rows.sizes().vec();
  sizes[0] = count;
  return at::empty(sizes, rows.options());
}

// Puts the rows of a record into the one that becomes whole.
class RowJoiner {
 public:
  RowJoiner(VariableRecord& whole, const VariableRecord& part)
      : whole_(whole),
        first_row_(part.first_row),
        rows_(part.values[0].tensor.size(0)),
        all_rows_(part.spec.sizes->front()) {}

  void join(const VariableRecord::Value& part) {
    VariableRecord::Value& value = whole_.values[0];
    join(value.tensor, part.tensor);
    value.slots.resize(part.slots.size());
    for (std::size_t s = 0; s < part.slots.size(); ++s) {
      internal::OptimizerSlots& slots = value.slots[s];
      slots.optimizer = part.slots[s].optimizer;
      slots.rule = part.slots[s].rule;
      slots.tensors.resize(part.slots[s].tensors.size());
      for (std::size_t i = 0; i < slots.tensors.size(); ++i)
        join(slots.tensors[i], part.slots[s].tensors[i]);
    }
  }

 private:
  void join(at::Tensor& whole, const at::Tensor& part) const {
    if (part.dim() == 0 || part.size(0) != rows_) {
      whole = part;
      return;
    }
    if (!whole.defined()) whole = memory_for(part, all_rows_);
    whole.narrow(0, first_row_, rows_).copy_(part);
  }

  VariableRecord& whole_;
  const std::int64_t first_row_, rows_, all_rows_;
};

}  // namespace

VariableRecord::Value copy_of(const VariableRecord::Value& value) {
  VariableRecord::Value copy = value;
  copy.tensor = copy.tensor.clone();
  for (internal::OptimizerSlots& slots : copy.slots)
    for (at::Tensor& tensor : slots.tensors) tensor = tensor.clone();
  return copy;
}

std::vector<VariableRecord> whole_state(std::span<const Variable> variables,
                                        const StateWalk& walk) {
  std::vector<VariableRecord> whole(variables.size());
  export_state(variables, walk, [&](std::size_t i, VariableRecord record) {
    if (record.is_whole()) {
      whole[i] = std::move(record);
      return;
    }
    if (whole[i].values.empty())
      whole[i] = {.name = record.name, .spec = record.spec, .values = {{}}};
    RowJoiner(whole[i], record).join(record.values[0]);
  });
  return whole;
}

void import_state(const Variable& variable, const VariableRecord& record) {
  COHORT_CHECK(record.spec == variable.spec() && !record.values.empty() && record.is_whole(),
               ErrorCode::invalid_argument, "[variable.import_state] expected the state of ",
               variable.spec().to_string(), " for variable '", variable.name(), "', got ",
               record.values.empty() ? "none" : "", record.spec.to_string(), " of '", record.name,
               "'");
  const std::shared_ptr<VariableHome> home = variable.impl()->home();
  home->check_use("assign", variable.name());
  COHORT_CHECK(record.values.size() == 1 || home->reduces_over_replicas(),
               ErrorCode::invalid_argument,
               "[variable.import_state] expected one value for variable '", variable.name(),
               "', which has no replicas, got ", record.values.size(),
               "; export them without is_by_replica");
  home->import_state(variable, record);
}

}  // namespace cohort
