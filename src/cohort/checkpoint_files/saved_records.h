// SPDX-License-Identifier: Apache-2.0
// How the state of variables becomes tensors of a checkpoint.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <map>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "cohort/checkpoint_files/manifest.h"
#include "cohort/checkpoint_files/tensor_sink.h"
#include "cohort/variable/state_walk.h"

namespace cohort::checkpoint {

// The tensor of a slot, the `number`th that its rule has.
std::string name_of_slot(const std::string& variable, const std::string& optimizer,
                         const std::string& rule, std::size_t number);

// Writes the records of a walk, and notes what they were. Used from one thread at a time.
class SavedRecords {
 public:
  // Slots that records leave out, by variable, optimizer and number. An undefined one is written by
  // somebody else.
  using SlotsElsewhere = std::map<std::tuple<std::string, std::string, std::size_t>, at::Tensor>;
  // `values`: what the variables with several values are as a whole, by name. It must outlive this.
  explicit SavedRecords(const std::map<std::string, at::Tensor>& values, SlotsElsewhere slots = {})
      : values_(values), elsewhere_(std::move(slots)) {}

  // Before the first record: where they go from now on.
  void write_to(TensorSink& sink) { sink_ = &sink; }
  // Takes the value and its slots out of the record, so that nobody else has what only it had.
  void write(VariableRecord& record);
  // The value of each replica.
  void write_replicas(const std::string& name, const std::vector<at::Tensor>& values);
  // Adds what somebody else has written of variables, and the numbers that it has noted.
  void add(std::vector<VariableEntry> entries, std::span<const std::string> names,
           std::span<const at::Tensor> numbers);
  // Slots without rows, by name, which are not written; for add() elsewhere.
  std::map<std::string, at::Tensor> take_numbers() { return std::exchange(numbers_, {}); }
  // After all records. Writes the numbers.
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

  TensorSink* sink_ = nullptr;
  const std::map<std::string, at::Tensor>& values_;
  const SlotsElsewhere elsewhere_;
  std::map<std::string, VariableEntry> entries_;  // by name
  std::map<std::string, at::Tensor> numbers_;     // slots without rows, by name
};

}  // namespace cohort::checkpoint
