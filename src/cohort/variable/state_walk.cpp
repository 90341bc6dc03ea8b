// SPDX-License-Identifier: Apache-2.0
#include "cohort/variable/state_walk.h"

#include <ATen/core/TensorBody.h>

#include <utility>

#include "cohort/core/error.h"
#include "cohort/variable/variable_home.h"
#include "cohort/variable/variable_state.h"

namespace cohort {
namespace {

// Puts a tensor of the record, which has some rows, into the one that becomes whole.
void join(at::Tensor& whole, const at::Tensor& part, const VariableRecord& record) {
  const std::int64_t rows = record.values[0].tensor.size(0);
  if (part.dim() == 0 || part.size(0) != rows) {
    whole = part;
    return;
  }
  if (!whole.defined()) whole = memory_for_rows(part, record.spec.sizes->front());
  whole.narrow(0, record.first_row, rows).copy_(part);
}

void join(VariableRecord::Value& whole, const VariableRecord& record) {
  const VariableRecord::Value& part = record.values[0];
  join(whole.tensor, part.tensor, record);
  whole.slots.resize(part.slots.size());
  for (std::size_t s = 0; s < part.slots.size(); ++s) {
    internal::OptimizerSlots& slots = whole.slots[s];
    slots.optimizer = part.slots[s].optimizer;
    slots.rule = part.slots[s].rule;
    slots.tensors.resize(part.slots[s].tensors.size());
    for (std::size_t i = 0; i < slots.tensors.size(); ++i)
      join(slots.tensors[i], part.slots[s].tensors[i], record);
  }
}

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
    COHORT_CHECK(!record.keys.defined(), ErrorCode::unimplemented,
                 "[variable.save_values] expected variables, got table '", record.name,
                 "', which has rows by key and is not saved whole; leave it out");
    if (record.is_whole()) {
      whole[i] = std::move(record);
      return;
    }
    if (whole[i].values.empty())
      whole[i] = {.name = record.name, .spec = record.spec, .values = {{}}};
    join(whole[i].values[0], record);
  });
  return whole;
}

void import_state(const Variable& variable, const VariableRecord& record) {
  const bool is_complete = !record.values.empty() && (record.keys.defined() || record.is_whole());
  COHORT_CHECK(record.spec == variable.spec() && is_complete, ErrorCode::invalid_argument,
               "[variable.import_state] expected the state of ", variable.spec().to_string(),
               " for variable '", variable.name(), "', got ", record.values.empty() ? "none" : "",
               record.spec.to_string(), " of '", record.name, "'");
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
