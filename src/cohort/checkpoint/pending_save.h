// SPDX-License-Identifier: Apache-2.0
// A save whose files may still be written, and how workers learn how it has ended.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "cohort/checkpoint/background_write.h"
#include "cohort/core/clock.h"
#include "cohort/core/error.h"
#include "cohort/strategy/strategy_parts.h"

namespace cohort::checkpoint {

// Used only from the thread that uses its manager.
class PendingSave {
 public:
  // `writing`: nullptr where another worker writes.
  PendingSave(std::string path, const internal::StrategyVariables& parts,
              std::unique_ptr<BackgroundWrite> writing)
      : path_(std::move(path)), parts_(&parts), writing_(std::move(writing)) {}

  const std::string& path() const { return path_; }
  // As the worker that writes it has it.
  void set_path(std::string path) { path_ = std::move(path); }
  bool is_done() const { return is_known_ || (writing_ != nullptr && writing_->is_done()); }
  // Waits until the end is known, on all workers together. Throws what the save has thrown, each
  // time; deadline_exceeded if it needs longer.
  void wait(Duration timeout);
  // All workers together: waits for `last`, which may be nullptr, wherever its end is not known.
  // Throws its error once.
  static void settle(const internal::StrategyVariables& parts, PendingSave* last, Duration timeout);
  // The manager ends: waits for the files, and logs an error that nobody has seen.
  void end() noexcept;

 private:
  struct Told;
  Bytes tell(Duration timeout) const;
  void note_end(std::optional<Error> error);

  std::string path_;
  const internal::StrategyVariables* parts_;  // nullptr: the manager has ended
  std::unique_ptr<BackgroundWrite> writing_;
  bool is_known_ = false;
  std::optional<Error> error_;
};

}  // namespace cohort::checkpoint
