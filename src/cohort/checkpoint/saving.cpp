// SPDX-License-Identifier: Apache-2.0
// How the contents of a checkpoint go to a folder.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/TensorBody.h>
#include <ATen/ops/equal.h>
#include <fmt/chrono.h>
#include <fmt/format.h>

#include <chrono>
#include <iterator>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>

#include "cohort/checkpoint/background_write.h"
#include "cohort/checkpoint/contents.h"
#include "cohort/checkpoint/saved_folder.h"
#include "cohort/checkpoint/worker_shares.h"
#include "cohort/checkpoint_files/folder_writer.h"
#include "cohort/checkpoint_files/saved_records.h"
#include "cohort/checkpoint_files/share_writer.h"
#include "cohort/coordinator/server_cut.h"
#include "cohort/core/error.h"
#include "cohort/strategy/parameter_server_strategy.h"
#include "cohort/variable/state_walk.h"

namespace cohort::checkpoint {
namespace {

// Updates may replace so much on each server during a write, before they wait.
constexpr std::uint64_t kServerBytesMax = std::uint64_t{64} << 20;

Bytes default_generator() {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const std::lock_guard<std::mutex> lock(generator.mutex());
  return bytes_of_tensor(generator.get_state());
}

bool have_equal_slots(const VariableRecord::Value& a, const VariableRecord::Value& b) {
  if (a.slots.size() != b.slots.size()) return false;
  for (std::size_t i = 0; i < a.slots.size(); ++i) {
    const std::vector<at::Tensor>& tensors = a.slots[i].tensors;
    const std::vector<at::Tensor>& others = b.slots[i].tensors;
    if (a.slots[i].optimizer != b.slots[i].optimizer || tensors.size() != others.size())
      return false;
    for (std::size_t k = 0; k < tensors.size(); ++k)
      if (tensors[k].defined() && !at::equal(tensors[k].cpu(), others[k].cpu())) return false;
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

// The moment of one save, and what follows it. The thread that writes has it in the end, and then
// refers to nothing of the program.
class Saving {
 public:
  // `bytes_max`: what updates on servers may replace before they wait.
  Saving(const Contents& contents, std::int64_t step, std::uint64_t bytes_max)
      : parts_(contents.parts()), step_(step) {
    std::vector<Variable> on_servers;
    const auto* const servers = dynamic_cast<const ParameterServerStrategy*>(contents.strategy_);
    all_ = contents.all_variables();
    for (const Variable& each : all_) {
      const bool is_there = servers != nullptr && coordinator::ServerCut::covers(*servers, each);
      (is_there ? on_servers : variables_).push_back(each);
    }
    if (servers != nullptr)
      cut_ = std::make_unique<coordinator::ServerCut>(*servers, std::move(on_servers), bytes_max);
  }

  // All workers do this together, before the first one writes.
  void gather(const Contents& contents, bool has_shares = false) {
    for (const Variable& each : variables_) {
      if (each.synchronization() == VariableSynchronization::on_read &&
          parts_.replicas_in_sync() > 1 && parts_.owns(each))
        divided_.push_back(each);
    }
    of_replicas_ = parts_.values_of_replicas("checkpoint", divided_);
    const std::vector<at::Tensor> values = read_values(divided_);
    for (std::size_t i = 0; i < divided_.size(); ++i)
      values_.emplace(divided_[i].name(), values[i]);
    if (has_shares) {
      pieces_ = parts_.own_rows_of_shared_slots("checkpoint");
    } else {
      slots_ = parts_.gather_shared_slots("checkpoint", StateWalk().chunk_bytes);
    }
    generators_ = parts_.exchange("checkpoint", default_generator);
    for (const auto& [name, position] : contents.positions_)
      positions_.emplace(name, position.save());
  }

  // All workers: each writes the slots of which it has shares into the folder, which is returned on
  // the first one.
  std::shared_ptr<FolderWriter> write_shares(const Contents& contents, const std::string& path) {
    std::shared_ptr<FolderWriter> files =
        write_worker_shares(parts_, path, header_room(contents), pieces_);
    for (internal::StrategyVariables::SlotRows& each : pieces_) each.rows = at::Tensor();
    return files;
  }

  // Writes what is in this process; closures on servers go on afterwards.
  void capture(const Contents& contents, SavedFolder& folder) {
    records_.emplace(values_, slots_elsewhere());  // also if it is captured again
    records_->write_to(folder);
    manifest_ = {.step = step_,
                 .cohort = COHORT_VERSION,
                 .strategy = contents.strategy_ == nullptr
                                 ? std::string()
                                 : std::string(contents.strategy_->name()),
                 .time = fmt::format("{:%FT%TZ}", fmt::gmtime(std::chrono::system_clock::now()))};
    const StateWalk walk{.is_by_replica = true, .has_gaps = !slots_.empty() || !pieces_.empty()};
    export_state(variables_, walk, [&](std::size_t, VariableRecord record) {
      const bool is_different = record.values.size() > 1 && !values_.contains(record.name);
      const VariableRecord all = is_different ? record : VariableRecord();
      records_->write(record);
      if (is_different) write_different(all);
    });
    for (std::size_t i = 0; i < divided_.size(); ++i)
      records_->write_replicas(divided_[i].name(), of_replicas_[i]);
    for (const auto& [name, tensor] : contents.tensors_) {
      folder.write(name, tensor.detach());
      manifest_.variables.push_back({.name = name, .spec = TensorSpec::of(tensor)});
    }
    write_states(folder);
    write_others(contents, folder);
    if (cut_ != nullptr) cut_->resume();
  }

  // Writes what is on servers, or lets each of them write its own. Returns what is to be committed.
  Manifest finish(FolderWriter& files, SavedFolder& folder,
                  CheckpointWriters writers = CheckpointWriters::first) {
    records_->write_to(folder);
    if (cut_ != nullptr && writers == CheckpointWriters::each) {
      add_shares(files);
    } else if (cut_ != nullptr) {
      cut_->export_state([&](std::size_t, VariableRecord record) { records_->write(record); });
    }
    cut_.reset();
    std::vector<VariableEntry> entries = records_->take_entries();
    std::move(entries.begin(), entries.end(), std::back_inserter(manifest_.variables));
    return std::move(manifest_);
  }

  // A variable seldom has more than three slots, and 256 bytes hold what a header says of one.
  std::uint64_t header_room(const Contents& contents) const {
    std::uint64_t room = room_for_variables();
    for (const auto& [name, tensor] : contents.tensors_) room += 256 + name.size();
    return room;
  }

 private:
  std::uint64_t room_for_variables() const {
    std::uint64_t room = 4096;
    for (const Variable& each : all_) room += 4 * (256 + each.name().size());
    return room;
  }
  void add_shares(FolderWriter& files) {
    const FolderProof proof = make_proof(files.partial_path());
    const std::vector<coordinator::ServerCut::Share> shares =
        cut_->write_shares({.path = proof.folder,
                            .proof_name = proof.name,
                            .proof_text = proof.text,
                            .header_room = room_for_variables()});
    for (const coordinator::ServerCut::Share& share : shares)
      records_->add(files.add_share(share.text, share.server), share.number_names, share.numbers);
    remove_proof(proof);
  }
  // Replicas have assigned different values of a variable that has no aggregation.
  void write_different(const VariableRecord& record) {
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
    records_->write_replicas(record.name, values);
  }
  SavedRecords::SlotsElsewhere slots_elsewhere() const {
    SavedRecords::SlotsElsewhere slots;
    for (const internal::StrategyVariables::GatheredSlot& each : slots_)
      slots.emplace(std::tuple(each.variable, each.optimizer, each.number), each.whole);
    for (const internal::StrategyVariables::SlotRows& each : pieces_)
      slots.emplace(std::tuple(each.variable, each.optimizer, each.number), at::Tensor());
    return slots;
  }
  void write_states(SavedFolder& folder) {
    for (const auto& state : states_of(parts_, all_)) {
      const AttachedState::OptimizerId id = state->id();
      StateEntry entry{.key = state->key(),
                       .optimizer = std::string(id.name),
                       .rule = std::string(id.rule),
                       .first_variable = std::string(id.first_variable),
                       .tensor = "@state-" + std::to_string(manifest_.states.size())};
      folder.write(entry.tensor, tensor_of_bytes(state->save()));
      manifest_.states.push_back(std::move(entry));
    }
  }
  void write_others(const Contents& contents, SavedFolder& folder) {
    for (std::size_t i = 0; i < generators_.size(); ++i) {
      manifest_.generators.push_back("@generator-" + std::to_string(i));
      folder.write(manifest_.generators.back(), tensor_of_bytes(generators_[i]));
    }
    for (const auto& [name, position] : positions_) {
      const std::string tensor = "@position/" + name;
      folder.write(tensor, tensor_of_bytes(position));
      manifest_.positions.emplace(name, tensor);
    }
    for (const auto& [name, state] : contents.values_)
      manifest_.values.emplace(name, checked_json(name, state.save()));
  }

  const internal::StrategyVariables& parts_;
  const std::int64_t step_;
  std::vector<Variable> all_;
  std::vector<Variable> variables_;                   // all but those on servers
  std::unique_ptr<coordinator::ServerCut> cut_;       // nullptr: there are no servers
  std::vector<Variable> divided_;                     // whose replicas have values of their own
  std::vector<std::vector<at::Tensor>> of_replicas_;  // of these
  std::map<std::string, at::Tensor> values_;          // of these as a whole, by name
  std::vector<internal::StrategyVariables::GatheredSlot> slots_;  // of which workers have shares
  std::vector<internal::StrategyVariables::SlotRows> pieces_;     // of slots, in place of slots_
  std::vector<Bytes> generators_;
  std::map<std::string, Bytes> positions_;
  std::optional<SavedRecords> records_;
  Manifest manifest_;
};

void Contents::write(const std::string& path, std::int64_t step) const {
  std::shared_ptr<void> hold = hold_epochs("write");
  Saving saving(*this, step, kServerBytesMax);
  saving.gather(*this);
  parts().home()->write_file([&](const VariableHome::FileTurn& turn) {
    const auto files = std::make_shared<FolderWriter>(path, saving.header_room(*this));
    SavedFolder folder(files);
    saving.capture(*this, folder);
    hold.reset();
    files->commit(saving.finish(*files, folder), turn.check);
  });
}

std::unique_ptr<BackgroundWrite> Contents::begin_write(const Write& write,
                                                       const std::function<void()>& then) const {
  const std::shared_ptr<void> hold = hold_epochs("save");
  const auto saving = std::make_shared<Saving>(*this, write.step, write.bytes_max);
  const bool has_shares = write.writers == CheckpointWriters::each && parts().home()->has_workers();
  saving->gather(*this, has_shares);
  std::shared_ptr<FolderWriter> with_shares;
  if (has_shares) with_shares = saving->write_shares(*this, write.path);
  const auto new_files = [&] {
    if (!has_shares) return std::make_shared<FolderWriter>(write.path, saving->header_room(*this));
    COHORT_CHECK(with_shares != nullptr, ErrorCode::aborted,
                 "[checkpoint.save] expected all workers that have written their shares of "
                 "checkpoint '",
                 write.path, "', got fewer: one was lost meanwhile; save again");
    return std::exchange(with_shares, nullptr);
  };
  std::unique_ptr<BackgroundWrite> writing;
  // This may be called again after a loss of other workers. Then the first writing is dropped.
  const auto begin = [&](const VariableHome::FileTurn& turn) {
    if (writing != nullptr) writing->cancel();
    writing.reset();
    auto thread = std::make_unique<BackgroundWrite>(write.bytes_max);
    try {
      const std::shared_ptr<FolderWriter> files = new_files();
      SavedFolder copies(files, *thread, write.bytes_max);
      saving->capture(*this, copies);
      if (turn.check) turn.check();  // it asks objects of this thread
      thread->reserve(0);
      thread->add(0, [saving, files, then, writers = write.writers] {
        SavedFolder folder(files);
        files->commit(saving->finish(*files, folder, writers));
        then();
      });
      thread->close();
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
