// SPDX-License-Identifier: Apache-2.0
// The stage of the ops that read files in order.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cohort/data/files/file_reader.h"
#include "cohort/data/stages/stage.h"

namespace cohort::data {

// Used from one thread at a time.
class FileReaderStage final : public Stage {
 public:
  // Interleaves up to `open_files` open files, one element of each in turn.
  FileReaderStage(const FileReaderNode& node, StageContext context, std::unique_ptr<Stage> names,
                  std::size_t open_files);

  bool next(Fields& fields) override;
  std::int64_t next_batch(std::int64_t count, Fields& batch) override;
  std::int64_t skip(std::int64_t count) override;
  void describe_position(Position& at) override;

 private:
  // One of the interleaved files.
  struct Slot {
    bool is_taken = false;
    std::string path;
    std::uint64_t resume_at = 0;           // the offset at which reading begins
    std::unique_ptr<FileScanner> scanner;  // null until the slot's turn comes
  };

  bool next_value(std::string_view& value);
  // Calls make(), which converts the last value, and adds the value's position to an error.
  template <class Make>
  void make_of_value(Make make) const;
  // Calls add() for `count` values, fewer at the end; returns how many. If one of them is an error,
  // it is thrown after all of them are consumed, or at once after stop_at_errors().
  template <class Add>
  std::int64_t draw(std::int64_t count, Add add);
  std::int64_t next_strings(std::int64_t count, Fields& batch);
  bool next_in_slot(Slot& slot, std::string_view& value);
  bool take_name(Slot& slot);
  void release(Slot& slot);
  void next_turn() { turn_ = turn_ + 1 == slots_.size() ? 0 : turn_ + 1; }

  const FileReaderNode& reader_;
  StageContext context_;
  std::unique_ptr<Stage> names_;
  bool names_have_ended_ = false;
  std::vector<Slot> slots_;
  std::size_t taken_count_ = 0;
  std::size_t turn_ = 0;
  std::size_t last_turn_ = 0;           // the slot of the last value
  std::size_t batch_bytes_ = 0;         // room to reserve for the next batch of strings
  std::unique_ptr<ValueBatch> values_;  // null if elements are the values themselves
};

}  // namespace cohort::data
