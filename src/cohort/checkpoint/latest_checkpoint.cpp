// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "cohort/checkpoint/checkpoint.h"
#include "cohort/checkpoint/contents.h"
#include "cohort/checkpoint/pending_save.h"
#include "cohort/checkpoint_files/folder_reader.h"
#include "cohort/checkpoint_files/kept_checkpoints.h"
#include "cohort/core/error.h"

namespace cohort {

using checkpoint::BackgroundWrite;
using checkpoint::bytes_of_text;
using checkpoint::FolderReader;
using checkpoint::KeptCheckpoints;
using checkpoint::PendingSave;

class CheckpointManager::Folder final : public KeptCheckpoints {
  using KeptCheckpoints::KeptCheckpoints;
};

namespace {

// The newest checkpoint before this one that is whole; nullopt: there is none.
std::optional<std::string> newest_whole(const KeptCheckpoints& folder, std::int64_t before) {
  const std::vector<std::int64_t> steps = folder.steps();
  for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
    if (*step >= before) continue;
    try {
      FolderReader(folder.path_of(*step)).verify();
      return folder.path_of(*step);
    } catch (const Error&) {  // damaged, too
    }
  }
  return std::nullopt;
}

void check_options(const CheckpointManagerOptions& options) {
  COHORT_CHECK(options.max_to_keep >= 0, ErrorCode::invalid_argument,
               "[checkpoint.manager] expected max_to_keep >= 0, got ", options.max_to_keep);
  COHORT_CHECK(options.keep_every >= Duration::zero(), ErrorCode::invalid_argument,
               "[checkpoint.manager] expected keep_every >= 0, got ",
               std::chrono::duration<double>(options.keep_every).count(), " s");
  COHORT_CHECK(options.memory_max_bytes > 0, ErrorCode::invalid_argument,
               "[checkpoint.manager] expected memory_max_bytes > 0, got ",
               options.memory_max_bytes);
  COHORT_CHECK(options.timeout > Duration::zero(), ErrorCode::invalid_argument,
               "[checkpoint.manager] expected timeout > 0, got ",
               std::chrono::duration<double>(options.timeout).count(), " s");
}

}  // namespace

CheckpointManager::CheckpointManager(const Checkpoint& checkpoint, std::string folder,
                                     CheckpointManagerOptions options)
    : checkpoint_(checkpoint), options_(options) {
  check_options(options);
  const internal::StrategyVariables& parts = checkpoint.contents_->parts();
  if (parts.home()->keeps_newer_values()) {  // the others have made theirs
    if (parts.process() == 0) folder_ = std::make_shared<Folder>(std::move(folder));
    return;
  }
  parts.exchange("checkpoint", [&] {
    if (parts.process() == 0) folder_ = std::make_shared<Folder>(std::move(folder));
    return Bytes();
  });
}

CheckpointManager::~CheckpointManager() {
  if (last_ != nullptr) last_->end();
}

PendingCheckpoint CheckpointManager::save(std::int64_t step) {
  COHORT_CHECK(step >= 0, ErrorCode::invalid_argument,
               "[checkpoint.save] expected a step >= 0, got ", step);
  const internal::StrategyVariables& parts = checkpoint_.contents_->parts();
  checkpoint::Contents::check_place("save");
  PendingSave::settle(parts, last_.get(), options_.timeout);
  const std::string own = folder_ == nullptr ? std::string("-") : folder_->path_of(step);
  const auto then = [folder = folder_, step, options = options_] {
    folder->set_latest(step);
    folder->remove_old(options.max_to_keep, options.keep_every);
  };
  std::unique_ptr<BackgroundWrite> writing = checkpoint_.contents_->begin_write(
      {.path = own,
       .step = step,
       .bytes_max = static_cast<std::uint64_t>(options_.memory_max_bytes),
       .writers = options_.writers},
      then);
  const bool is_writer = writing != nullptr;
  auto begun = std::make_shared<PendingSave>(own, parts, std::move(writing));
  last_ = begun;
  const std::vector<Bytes> paths =
      parts.exchange("checkpoint", [&] { return is_writer ? bytes_of_text(own) : Bytes(); });
  begun->set_path(checkpoint::text_of_bytes(paths.at(0)));
  return PendingCheckpoint(std::move(begun));
}

std::optional<Restored> CheckpointManager::restore_latest(const RestoreOptions& options) {
  const internal::StrategyVariables& parts = checkpoint_.contents_->parts();
  if (!parts.home()->keeps_newer_values()) {
    checkpoint_.contents_->check_restore();
    PendingSave::settle(parts, last_.get(), options_.timeout);
  }
  const std::optional<std::string> latest = latest_checkpoint();
  if (!latest) return std::nullopt;
  try {
    return checkpoint_.read(*latest, options);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::data_loss || folder_ == nullptr) throw;
    const std::optional<std::string> whole = newest_whole(*folder_, folder_->latest().value_or(0));
    throw current_error().during(whole
                                     ? "restoring the latest checkpoint; the newest one before it "
                                       "that is whole is '" +
                                           *whole + "': read() restores it"
                                     : "restoring the latest checkpoint; no one before it is "
                                       "whole");
  }
}

std::optional<std::string> CheckpointManager::latest_checkpoint() const {
  const internal::StrategyVariables& parts = checkpoint_.contents_->parts();
  const auto own = [&] {
    const std::optional<std::int64_t> step = folder_ == nullptr ? std::nullopt : folder_->latest();
    return step ? bytes_of_text(folder_->path_of(*step)) : Bytes();
  };
  const Bytes path =
      parts.home()->keeps_newer_values() ? own() : parts.exchange("checkpoint", own).at(0);
  if (path.empty()) return std::nullopt;
  return checkpoint::text_of_bytes(path);
}

const std::string& PendingCheckpoint::path() const { return save_->path(); }
bool PendingCheckpoint::done() const { return save_->is_done(); }
void PendingCheckpoint::wait(Duration timeout) const { save_->wait(timeout); }

std::vector<std::string> CheckpointManager::checkpoints() const {
  std::vector<std::string> all;
  if (folder_ == nullptr) return all;
  for (const std::int64_t step : folder_->steps()) all.push_back(folder_->path_of(step));
  return all;
}

}  // namespace cohort
