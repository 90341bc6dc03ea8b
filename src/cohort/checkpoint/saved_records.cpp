// SPDX-License-Identifier: Apache-2.0
#include "cohort/checkpoint/saved_records.h"

#include <ATen/core/TensorBody.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <fmt/format.h>

#include <utility>

#include "cohort/core/error.h"
#include "cohort/optimizer/optimizer.h"
#include "cohort/variable/variable_state.h"

namespace cohort::checkpoint {

SavedRecords::SavedRecords(const std::map<std::string, at::Tensor>& values,
                           const GatheredSlots& slots)
    : values_(values) {
  for (const auto& each : slots)
    gathered_.emplace(std::tuple(each.variable, each.optimizer, each.number), each.whole);
}

void SavedRecords::write(VariableRecord& record) {
  if (record.keys.defined()) return append(record);
  VariableEntry& entry = entries_[record.name];
  if (entry.name.empty()) entry = {.name = record.name, .spec = record.spec};
  const auto whole = values_.find(record.name);
  write_slots(entry, record);
  at::Tensor& own = record.values.at(0).tensor;
  folder_->write(record.name, record.spec, record.first_row,
                 whole == values_.end() ? std::move(own) : whole->second);
}

void SavedRecords::write_replicas(const std::string& name, const std::vector<at::Tensor>& values) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    std::string of_replica = name + "@replica-" + std::to_string(i);
    folder_->write(of_replica, values[i]);
    entries_.at(name).replicas.push_back(std::move(of_replica));
  }
}

std::vector<VariableEntry> SavedRecords::take_entries() {
  for (const auto& [name, number] : numbers_) folder_->write(name, number);
  std::vector<VariableEntry> all;
  for (auto& [name, entry] : entries_) all.push_back(std::move(entry));
  return all;
}

const std::vector<std::string>& SavedRecords::names_of(VariableEntry& entry,
                                                       const internal::OptimizerSlots& slots) {
  for (const SlotsEntry& known : entry.slots)
    if (known.optimizer == slots.optimizer && known.rule == slots.rule) return known.tensors;
  SlotsEntry& added = entry.slots.emplace_back(SlotsEntry{slots.optimizer, slots.rule, {}});
  for (const std::string_view slot : optimizer::update_rule_of(slots.rule).slot_names())
    added.tensors.push_back(fmt::format("{}@{}/{}", entry.name, slots.optimizer, slot));
  COHORT_ASSERT(added.tensors.size() == slots.tensors.size());
  return added.tensors;
}

void SavedRecords::write_slots(VariableEntry& entry, VariableRecord& record) {
  VariableRecord::Value& value = record.values.at(0);
  for (internal::OptimizerSlots& slots : value.slots) {
    const std::vector<std::string>& names = names_of(entry, slots);
    for (std::size_t i = 0; i < names.size(); ++i) {
      at::Tensor& slot = slots.tensors[i];
      if (!slot.defined()) slot = gathered_.at(std::tuple(record.name, slots.optimizer, i));
      write_slot(names[i], slot, record, value.tensor);
    }
  }
}

void SavedRecords::write_slot(const std::string& name, at::Tensor& slot,
                              const VariableRecord& record, const at::Tensor& value) {
  if (value.dim() == 0 || !variable::has_rows(slot, value)) return note_number(name, slot);
  if (record.keys.defined()) return folder_->append(name, std::move(slot));
  TensorSpec spec = TensorSpec::of(slot);
  spec.sizes->front() = record.spec.sizes->front();
  folder_->write(name, spec, record.first_row, std::move(slot));
}

// Servers count the steps of their parts of a variable: a restored one goes on after the largest.
void SavedRecords::note_number(const std::string& name, const at::Tensor& slot) {
  const at::Tensor number = slot.detach().to(at::kCPU, slot.scalar_type(), false, true);
  const auto [known, is_new] = numbers_.emplace(name, number);
  if (is_new || at::equal(known->second, number)) return;
  COHORT_CHECK(number.dim() == 0 && number.scalar_type() == at::kLong, ErrorCode::unimplemented,
               "[checkpoint.write] expected equal slots '", name,
               "' of all parts of the variable, got different ones; keep the variable whole");
  if (number.item<std::int64_t>() > known->second.item<std::int64_t>()) known->second = number;
}

// All tensors of a table get a part with the same rows.
void SavedRecords::append(VariableRecord& record) {
  VariableEntry& entry = entries_[record.name];
  if (entry.name.empty()) {
    entry = {.name = record.name, .spec = record.spec};
    entry.keys = record.name + "@keys";
    entry.counted_keys = record.name + "@counted-keys";
    entry.counts = record.name + "@counts";
    const at::Tensor none = at::empty({0}, at::TensorOptions(at::kLong));
    for (const std::string& name : {entry.counted_keys, entry.counts}) folder_->append(name, none);
  }
  folder_->append(record.is_of_counts ? entry.counted_keys : entry.keys, record.keys);
  write_slots(entry, record);  // counts have none
  folder_->append(record.is_of_counts ? entry.counts : record.name,
                  std::move(record.values.at(0).tensor));
}

}  // namespace cohort::checkpoint
