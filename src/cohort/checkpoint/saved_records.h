// SPDX-License-Identifier: Apache-2.0
// How the state of variables goes to the folder of a checkpoint.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "cohort/checkpoint/saved_folder.h"
#include "cohort/checkpoint_files/manifest.h"
#include "cohort/strategy/strategy_parts.h"
#include "cohort/variable/state_walk.h"

namespace cohort::checkpoint {

// Writes the records of a walk, and notes what they were. Used from one thread at a time.
class SavedRecords {
 public:
  using GatheredSlots = std::vector<internal::StrategyVariables::GatheredSlot>;
  // `values`: what the variables with several values are as a whole, by name. It must outlive this.
  // `slots`: those that records leave out, of which workers have shares.
  SavedRecords(const std::map<std::string, at::Tensor>& values, const GatheredSlots& slots);

  // Before the first record: where they go from now on.
  void write_to(SavedFolder& folder) { folder_ = &folder; }
  // Takes the value and its slots out of the record, so that nobody else has what only it had.
  void write(VariableRecord& record);
  // The value of each replica.
  void write_replicas(const std::string& name, const std::vector<at::Tensor>& values);
  // After all records.
  std::vector<VariableEntry> take_entries();

 private:
  // The names of the tensors of these slots.
  static const std::vector<std::string>& names_of(VariableEntry& entry,
                                                  const internal::OptimizerSlots& slots);
  void write_slots(VariableEntry& entry, VariableRecord& record);
  void write_slot(const std::string& name, at::Tensor& slot, const VariableRecord& record,
                  const at::Tensor& value);
  void note_number(const std::string& name, const at::Tensor& slot);
  void append(VariableRecord& record);

  SavedFolder* folder_ = nullptr;
  const std::map<std::string, at::Tensor>& values_;
  // By variable, optimizer and number.
  std::map<std::tuple<std::string, std::string, std::size_t>, at::Tensor> gathered_;
  std::map<std::string, VariableEntry> entries_;  // by name
  std::map<std::string, at::Tensor> numbers_;     // slots without rows, by name
};

}  // namespace cohort::checkpoint
