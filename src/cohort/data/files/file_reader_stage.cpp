// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <exception>

#include "cohort/core/error.h"
#include "cohort/data/files/copy_bytes.h"
#include "cohort/data/files/file_access.h"
#include "cohort/data/files/file_reader.h"

namespace cohort::data {
namespace {

// At most this many elements are preallocated for a batch, even if it is larger.
constexpr std::int64_t kFirstElementsMax = 4096;

// Reads the files in order. Used from one thread at a time.
class FileReaderStage final : public Stage {
 public:
  // Interleaves up to `open_files` open files, one element of each in turn.
  FileReaderStage(const FileReaderNode& node, StageContext context, std::unique_ptr<Stage> names,
                  std::size_t open_files)
      : Stage(node),
        reader_(node),
        context_(std::move(context)),
        names_(std::move(names)),
        slots_(open_files),
        values_(node.start_batch()) {}

  bool next(Fields& fields) override {
    std::string_view value;
    if (!next_value(value)) return false;
    make_of_value([&] { reader_.make_element(value, fields); });
    return true;
  }

  std::int64_t next_batch(std::int64_t count, Fields& batch) override {
    if (!values_) return next_strings(count, batch);
    values_->begin(count);
    const std::int64_t drawn = draw(
        count, [this](std::string_view value) { make_of_value([&] { values_->add(value); }); });
    if (drawn > 0) batch = values_->take();
    return drawn;
  }

  std::int64_t skip(std::int64_t count) override {
    std::int64_t skipped = 0;
    std::string_view value;
    for (; skipped < count; ++skipped) {
      check_cancelled();
      try {
        if (!next_value(value)) break;
      } catch (const std::exception&) {
        // An error counts as one element.
      }
    }
    return skipped;
  }

  void describe_position(Position& at) override {
    reader_.describe_reading(at, FileReading::in_order, context_);
    at(*names_, names_have_ended_, turn_);
    at.check(turn_ < slots_.size(), "the number of an open file");
    std::vector<std::uint64_t> taken;
    for (std::size_t i = 0; i < slots_.size(); ++i) {
      if (slots_[i].is_taken) taken.push_back(i);
      if (at.is_restored()) slots_[i] = {};
    }
    at.list(taken, 3, [&](std::uint64_t& number) {
      at(number);
      at.check(number < slots_.size() && !slots_[number].is_taken, "an open file");
      Slot& slot = slots_[number];
      if (slot.scanner) slot.resume_at = slot.scanner->offset();
      at(slot.path, slot.resume_at);
      slot.is_taken = true;
    });
    taken_count_ = taken.size();
  }

 private:
  // One of the interleaved files.
  struct Slot {
    bool is_taken = false;
    std::string path;
    std::uint64_t resume_at = 0;           // the offset at which reading begins
    std::unique_ptr<FileScanner> scanner;  // null until the slot's turn comes
  };

  bool next_value(std::string_view& value) {
    while (taken_count_ > 0 || !names_have_ended_) {
      check_cancelled();
      Slot& slot = slots_[turn_];
      if (!slot.is_taken && (names_have_ended_ || !take_name(slot))) {
        next_turn();
        continue;
      }
      try {
        if (next_in_slot(slot, value)) {
          last_turn_ = turn_;
          next_turn();
          return true;
        }
      } catch (...) {
        if (!slot.scanner || !slot.scanner->goes_on()) release(slot);
        next_turn();
        throw;
      }
      release(slot);
      next_turn();
    }
    return false;
  }

  // Calls make(), which converts the last value, and adds the value's position to an error.
  template <class Make>
  void make_of_value(Make make) const {
    try {
      make();
    } catch (const Error& error) {
      const Slot& slot = slots_[last_turn_];
      throw slot.scanner->located(error, slot.path);
    }
  }

  // Calls add() for `count` values, fewer at the end; returns how many. If one of them is an error,
  // it is thrown after all of them are consumed, or at once after stop_at_errors().
  template <class Add>
  std::int64_t draw(std::int64_t count, Add add) {
    std::exception_ptr first_error;
    std::string_view value;
    std::int64_t drawn = 0;
    for (; drawn < count; ++drawn) {
      try {
        if (!next_value(value)) break;
        if (!first_error) add(value);
      } catch (...) {
        check_cancelled();
        if (stops_at_errors()) throw;
        if (!first_error) first_error = std::current_exception();
      }
    }
    if (first_error) std::rethrow_exception(first_error);
    return drawn;
  }

  std::int64_t next_strings(std::int64_t count, Fields& batch) {
    std::string bytes;
    std::vector<std::uint64_t> ends;
    bytes.reserve(batch_bytes_);
    ends.reserve(static_cast<std::size_t>(std::min(count, kFirstElementsMax)));
    const std::int64_t drawn = draw(count, [&](std::string_view value) {
      append_bytes(value, bytes);
      ends.push_back(bytes.size());
    });
    if (drawn == 0) return 0;
    batch_bytes_ = bytes.size() + bytes.size() / 16;
    batch.assign(1, StringTensor({drawn}, std::move(bytes), std::move(ends)));
    return drawn;
  }

  bool next_in_slot(Slot& slot, std::string_view& value) {
    if (!slot.scanner) {
      const std::string found = allowed_path(slot.path, context_.options(), node().op());
      note_opened(context_, slot.path, found, node().op());
      slot.scanner = reader_.open(found);
      if (slot.resume_at > 0) slot.scanner->seek(slot.resume_at);
    }
    return slot.scanner->next(value);
  }

  bool take_name(Slot& slot) {
    Fields name;
    if (!names_->next(name)) {
      names_have_ended_ = true;
      return false;
    }
    COHORT_CHECK(name.size() == 1 && StringTensor::is(name[0]) && name[0].numel() == 1,
                 ErrorCode::invalid_argument, "[data.", node().op(),
                 "] expected file names as scalar strings, got elements of ", name.size(),
                 " fields, the first ",
                 name.empty() ? "none" : TensorSpec::of(name[0]).to_string());
    slot.path = StringTensor::of(name[0]).value();
    slot.resume_at = 0;
    slot.is_taken = true;
    ++taken_count_;
    return true;
  }

  void release(Slot& slot) {
    slot.scanner.reset();
    slot.is_taken = false;
    --taken_count_;
  }

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

}  // namespace

std::unique_ptr<Stage> start_file_reader(const FileReaderNode& node, const StageContext& context,
                                         std::unique_ptr<Stage> names, std::size_t open_files) {
  return std::make_unique<FileReaderStage>(node, context, std::move(names), open_files);
}

}  // namespace cohort::data
