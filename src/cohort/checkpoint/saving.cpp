// SPDX-License-Identifier: Apache-2.0
// How the contents of a checkpoint go to a folder.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/TensorBody.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <fmt/chrono.h>
#include <fmt/format.h>

#include <chrono>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>

#include "cohort/checkpoint/background_write.h"
#include "cohort/checkpoint/contents.h"
#include "cohort/checkpoint/saved_folder.h"
#include "cohort/checkpoint_files/folder_writer.h"
#include "cohort/core/error.h"
#include "cohort/optimizer/optimizer.h"
#include "cohort/variable/state_walk.h"

namespace cohort::checkpoint {
namespace {

Bytes default_generator() {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const std::lock_guard<std::mutex> lock(generator.mutex());
  return bytes_of_tensor(generator.get_state());
}

// Writes the records of a walk, and notes what they were.
class RecordWriter {
 public:
  // `values`: what the variables with several values are as a whole, by name.
  RecordWriter(SavedFolder& folder, const std::map<std::string, at::Tensor>& values)
      : folder_(folder), values_(values) {}

  // Takes the value and its slots out of the record, so that nobody else has what only it had.
  void write(VariableRecord& record) {
    if (record.keys.defined()) return append(record);
    VariableEntry& entry = entries_[record.name];
    if (entry.name.empty()) entry = {.name = record.name, .spec = record.spec};
    const auto whole = values_.find(record.name);
    write_slots(entry, record);
    at::Tensor& own = record.values.at(0).tensor;
    folder_.write(record.name, record.spec, record.first_row,
                  whole == values_.end() ? std::move(own) : whole->second);
  }
  // The value of each replica.
  void write_replicas(const std::string& name, const std::vector<at::Tensor>& values) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      std::string of_replica = name + "@replica-" + std::to_string(i);
      folder_.write(of_replica, values[i]);
      entries_.at(name).replicas.push_back(std::move(of_replica));
    }
  }
  std::vector<VariableEntry> take_entries() {
    for (const auto& [name, number] : numbers_) folder_.write(name, number);
    std::vector<VariableEntry> all;
    for (auto& [name, entry] : entries_) all.push_back(std::move(entry));
    return all;
  }

 private:
  // The names of the tensors of these slots.
  const std::vector<std::string>& names_of(VariableEntry& entry,
                                           const internal::OptimizerSlots& slots) {
    for (const SlotsEntry& known : entry.slots)
      if (known.optimizer == slots.optimizer && known.rule == slots.rule) return known.tensors;
    SlotsEntry& added = entry.slots.emplace_back(SlotsEntry{slots.optimizer, slots.rule, {}});
    for (const std::string_view slot : optimizer::update_rule_of(slots.rule).slot_names())
      added.tensors.push_back(fmt::format("{}@{}/{}", entry.name, slots.optimizer, slot));
    COHORT_ASSERT(added.tensors.size() == slots.tensors.size());
    return added.tensors;
  }
  void write_slots(VariableEntry& entry, VariableRecord& record) {
    VariableRecord::Value& value = record.values.at(0);
    for (internal::OptimizerSlots& slots : value.slots) {
      const std::vector<std::string>& names = names_of(entry, slots);
      for (std::size_t i = 0; i < names.size(); ++i)
        write_slot(names[i], slots.tensors[i], record, value.tensor);
    }
  }
  void write_slot(const std::string& name, at::Tensor& slot, const VariableRecord& record,
                  const at::Tensor& value) {
    if (value.dim() == 0 || !variable::has_rows(slot, value)) return note_number(name, slot);
    if (record.keys.defined()) return folder_.append(name, std::move(slot));
    TensorSpec spec = TensorSpec::of(slot);
    spec.sizes->front() = record.spec.sizes->front();
    folder_.write(name, spec, record.first_row, std::move(slot));
  }
  // Servers count the steps of their parts of a variable: a restored one goes on after the largest.
  void note_number(const std::string& name, const at::Tensor& slot) {
    const at::Tensor number = slot.detach().to(at::kCPU, slot.scalar_type(), false, true);
    const auto [known, is_new] = numbers_.emplace(name, number);
    if (is_new || at::equal(known->second, number)) return;
    COHORT_CHECK(number.dim() == 0 && number.scalar_type() == at::kLong, ErrorCode::unimplemented,
                 "[checkpoint.write] expected equal slots '", name,
                 "' of all parts of the variable, got different ones; keep the variable whole");
    if (number.item<std::int64_t>() > known->second.item<std::int64_t>()) known->second = number;
  }
  // All tensors of a table get a part with the same rows.
  void append(VariableRecord& record) {
    VariableEntry& entry = entries_[record.name];
    if (entry.name.empty()) {
      entry = {.name = record.name, .spec = record.spec};
      entry.keys = record.name + "@keys";
      entry.counted_keys = record.name + "@counted-keys";
      entry.counts = record.name + "@counts";
      const at::Tensor none = at::empty({0}, at::TensorOptions(at::kLong));
      for (const std::string& name : {entry.counted_keys, entry.counts}) folder_.append(name, none);
    }
    folder_.append(record.is_of_counts ? entry.counted_keys : entry.keys, record.keys);
    write_slots(entry, record);  // counts have none
    folder_.append(record.is_of_counts ? entry.counts : record.name,
                   std::move(record.values.at(0).tensor));
  }

  SavedFolder& folder_;
  const std::map<std::string, at::Tensor>& values_;
  std::map<std::string, VariableEntry> entries_;  // by name
  std::map<std::string, at::Tensor> numbers_;     // slots without rows, by name
};

bool have_equal_slots(const VariableRecord::Value& a, const VariableRecord::Value& b) {
  if (a.slots.size() != b.slots.size()) return false;
  for (std::size_t i = 0; i < a.slots.size(); ++i) {
    const std::vector<at::Tensor>& tensors = a.slots[i].tensors;
    const std::vector<at::Tensor>& others = b.slots[i].tensors;
    if (a.slots[i].optimizer != b.slots[i].optimizer || tensors.size() != others.size())
      return false;
    for (std::size_t k = 0; k < tensors.size(); ++k)
      if (!at::equal(tensors[k].cpu(), others[k].cpu())) return false;
  }
  return true;
}

std::string checked_json(const std::string& name, const std::string& text) {
  const auto json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  COHORT_CHECK(!json.is_discarded(), ErrorCode::invalid_argument,
               "[checkpoint.write] expected a JSON text of '", name, "', got '", text, "'");
  return text;
}

}  // namespace

// One save.
class Saving {
 public:
  Saving(const Contents& contents, std::int64_t step)
      : contents_(contents),
        parts_(contents.parts()),
        variables_(contents.all_variables()),
        step_(step) {}

  // All workers do this together, before the first one writes.
  void gather() {
    for (const Variable& each : variables_) {
      if (each.synchronization() == VariableSynchronization::on_read &&
          parts_.replicas_in_sync() > 1 && parts_.owns(each))
        divided_.push_back(each);
    }
    of_replicas_ = parts_.values_of_replicas("checkpoint", divided_);
    const std::vector<at::Tensor> values = read_values(divided_);
    for (std::size_t i = 0; i < divided_.size(); ++i)
      values_.emplace(divided_[i].name(), values[i]);
    generators_ = parts_.exchange("checkpoint", default_generator);
    for (const auto& [name, position] : contents_.positions_)
      positions_.emplace(name, position.save());
  }

  std::unique_ptr<FolderWriter> folder(const std::string& path) const {
    return std::make_unique<FolderWriter>(path, header_room());
  }
  // Returns what is to be committed.
  Manifest write(SavedFolder& folder) const {
    Manifest manifest{
        .step = step_,
        .cohort = COHORT_VERSION,
        .strategy = contents_.strategy_ == nullptr ? std::string()
                                                   : std::string(contents_.strategy_->name()),
        .time = fmt::format("{:%FT%TZ}", fmt::gmtime(std::chrono::system_clock::now()))};
    RecordWriter records(folder, values_);
    export_state(variables_, {.is_by_replica = true}, [&](std::size_t, VariableRecord record) {
      const bool is_different = record.values.size() > 1 && !values_.contains(record.name);
      const VariableRecord all = is_different ? record : VariableRecord();
      records.write(record);
      if (is_different) write_different(all, records);
    });
    for (std::size_t i = 0; i < divided_.size(); ++i)
      records.write_replicas(divided_[i].name(), of_replicas_[i]);
    manifest.variables = records.take_entries();
    for (const auto& [name, tensor] : contents_.tensors_) {
      folder.write(name, tensor.detach());
      manifest.variables.push_back({.name = name, .spec = TensorSpec::of(tensor)});
    }
    write_states(folder, manifest);
    write_others(folder, manifest);
    return manifest;
  }

 private:
  // Replicas have assigned different values of a variable that has no aggregation.
  void write_different(const VariableRecord& record, RecordWriter& records) const {
    COHORT_CHECK(record.values.size() == parts_.replicas_in_sync(), ErrorCode::unimplemented,
                 "[checkpoint.write] expected equal values of variable '", record.name,
                 "' in all replicas of several workers, got different ones; make it with "
                 "VariableSynchronization::on_read");
    std::vector<at::Tensor> values;
    for (const VariableRecord::Value& value : record.values) {
      values.push_back(value.tensor);
      COHORT_CHECK(have_equal_slots(value, record.values[0]), ErrorCode::unimplemented,
                   "[checkpoint.write] expected equal slots of variable '", record.name,
                   "' in all replicas, got different ones; update it by one optimizer in all "
                   "replicas");
    }
    records.write_replicas(record.name, values);
  }
  void write_states(SavedFolder& folder, Manifest& manifest) const {
    for (const auto& state : states_of(parts_, variables_)) {
      const AttachedState::OptimizerId id = state->id();
      StateEntry entry{.key = state->key(),
                       .optimizer = std::string(id.name),
                       .rule = std::string(id.rule),
                       .first_variable = std::string(id.first_variable),
                       .tensor = "@state-" + std::to_string(manifest.states.size())};
      folder.write(entry.tensor, tensor_of_bytes(state->save()));
      manifest.states.push_back(std::move(entry));
    }
  }
  void write_others(SavedFolder& folder, Manifest& manifest) const {
    for (std::size_t i = 0; i < generators_.size(); ++i) {
      manifest.generators.push_back("@generator-" + std::to_string(i));
      folder.write(manifest.generators.back(), tensor_of_bytes(generators_[i]));
    }
    for (const auto& [name, position] : positions_) {
      const std::string tensor = "@position/" + name;
      folder.write(tensor, tensor_of_bytes(position));
      manifest.positions.emplace(name, tensor);
    }
    for (const auto& [name, state] : contents_.values_)
      manifest.values.emplace(name, checked_json(name, state.save()));
  }
  // A variable seldom has more than three slots, and 256 bytes hold what a header says of one.
  std::uint64_t header_room() const {
    std::uint64_t room = 4096;
    for (const Variable& each : variables_) room += 4 * (256 + each.name().size());
    for (const auto& [name, tensor] : contents_.tensors_) room += 256 + name.size();
    return room;
  }

  const Contents& contents_;
  const internal::StrategyVariables& parts_;
  const std::vector<Variable> variables_;
  const std::int64_t step_;
  std::vector<Variable> divided_;                     // whose replicas have values of their own
  std::vector<std::vector<at::Tensor>> of_replicas_;  // of these
  std::map<std::string, at::Tensor> values_;          // of these as a whole, by name
  std::vector<Bytes> generators_;
  std::map<std::string, Bytes> positions_;
};

void Contents::write(const std::string& path, std::int64_t step) const {
  check_use("write");
  Saving saving(*this, step);
  saving.gather();
  parts().home()->write_file([&](const VariableHome::FileTurn& turn) {
    SavedFolder folder(saving.folder(path));
    Manifest manifest = saving.write(folder);
    folder.commit(std::move(manifest), turn.check);
  });
}

std::unique_ptr<BackgroundWrite> Contents::begin_write(const std::string& path, std::int64_t step,
                                                       std::uint64_t bytes_max,
                                                       const std::function<void()>& then) const {
  check_use("save");
  Saving saving(*this, step);
  saving.gather();
  std::unique_ptr<BackgroundWrite> writing;
  // This may be called again after a loss of other workers. Then the first writing is dropped.
  const auto begin = [&](const VariableHome::FileTurn& turn) {
    if (writing != nullptr) writing->cancel();
    writing.reset();
    auto thread = std::make_unique<BackgroundWrite>(bytes_max);
    try {
      SavedFolder folder(saving.folder(path), *thread, bytes_max);
      Manifest manifest = saving.write(folder);
      folder.commit(std::move(manifest), turn.check, then);
    } catch (...) {
      thread->cancel();
      throw;
    }
    writing = std::move(thread);
  };
  parts().home()->write_file(begin);
  return writing;
}

}  // namespace cohort::checkpoint
