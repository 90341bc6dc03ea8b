// SPDX-License-Identifier: Apache-2.0
#include "cohort/checkpoint_files/saved_records.h"

#include <ATen/core/TensorBody.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "cohort/core/error.h"
#include "cohort/optimizer/optimizer.h"
#include "cohort/variable/variable_state.h"

namespace cohort::checkpoint {

std::string name_of_slot(const std::string& variable, const std::string& optimizer,
                         const std::string& rule, std::size_t number) {
  return fmt::format("{}@{}/{}", variable, optimizer,
                     optimizer::update_rule_of(rule).slot_names()[number]);
}

void SavedRecords::write(VariableRecord& record) {
  if (record.keys.defined()) return append(record);
  VariableEntry& entry = entries_[record.name];
  if (entry.name.empty()) entry = {.name = record.name, .spec = record.spec};
  const auto whole = values_.find(record.name);
  write_slots(entry, record);
  at::Tensor& own = record.values.at(0).tensor;
  sink_->write(record.name, record.spec, record.first_row,
               whole == values_.end() ? std::move(own) : whole->second);
}

void SavedRecords::write_replicas(const std::string& name, const std::vector<at::Tensor>& values) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    std::string of_replica = name + "@replica-" + std::to_string(i);
    sink_->write(of_replica, values[i]);
    entries_.at(name).replicas.push_back(std::move(of_replica));
  }
}

std::vector<VariableEntry> SavedRecords::take_entries() {
  for (const auto& [name, number] : numbers_) sink_->write(name, number);
  std::vector<VariableEntry> all;
  for (auto& [name, entry] : entries_) all.push_back(std::move(entry));
  return all;
}

const std::vector<std::string>& SavedRecords::names_of(VariableEntry& entry,
                                                       const internal::OptimizerSlots& slots) {
  for (const SlotsEntry& known : entry.slots)
    if (known.optimizer == slots.optimizer && known.rule == slots.rule) return known.tensors;
  SlotsEntry& added = entry.slots.emplace_back(SlotsEntry{slots.optimizer, slots.rule, {}});
  for (std::size_t i = 0; i < optimizer::update_rule_of(slots.rule).slot_names().size(); ++i)
    added.tensors.push_back(name_of_slot(entry.name, slots.optimizer, slots.rule, i));
  COHORT_ASSERT(added.tensors.size() == slots.tensors.size());
  return added.tensors;
}

void SavedRecords::write_slots(VariableEntry& entry, VariableRecord& record) {
  VariableRecord::Value& value = record.values.at(0);
  for (internal::OptimizerSlots& slots : value.slots) {
    const std::vector<std::string>& names = names_of(entry, slots);
    for (std::size_t i = 0; i < names.size(); ++i) {
      at::Tensor& slot = slots.tensors[i];
      if (!slot.defined()) slot = elsewhere_.at(std::tuple(record.name, slots.optimizer, i));
      if (!slot.defined()) continue;
      write_slot(names[i], slot, record, value.tensor);
    }
  }
}

void SavedRecords::write_slot(const std::string& name, at::Tensor& slot,
                              const VariableRecord& record, const at::Tensor& value) {
  if (value.dim() == 0 || !variable::has_rows(slot, value)) return note_number(name, slot);
  if (record.keys.defined()) return sink_->append(name, std::move(slot));
  TensorSpec spec = TensorSpec::of(slot);
  spec.sizes->front() = record.spec.sizes->front();
  sink_->write(name, spec, record.first_row, std::move(slot));
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

void SavedRecords::add(std::vector<VariableEntry> entries, std::span<const std::string> names,
                       std::span<const at::Tensor> numbers) {
  for (VariableEntry& entry : entries) {
    VariableEntry& known = entries_[entry.name];
    if (known.name.empty()) {
      known = std::move(entry);
      continue;
    }
    for (SlotsEntry& slots : entry.slots)
      if (std::ranges::find(known.slots, slots) == known.slots.end())
        known.slots.push_back(std::move(slots));
  }
  for (std::size_t i = 0; i < std::min(names.size(), numbers.size()); ++i)
    note_number(names[i], numbers[i]);
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
    for (const std::string& name : {entry.counted_keys, entry.counts}) sink_->append(name, none);
  }
  sink_->append(record.is_of_counts ? entry.counted_keys : entry.keys, record.keys);
  write_slots(entry, record);  // counts have none
  sink_->append(record.is_of_counts ? entry.counts : record.name,
                std::move(record.values.at(0).tensor));
}

}  // namespace cohort::checkpoint
