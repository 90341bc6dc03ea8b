// SPDX-License-Identifier: Apache-2.0
// The files of a SummaryWriter.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>

#include "cohort/data/file_sink.h"
#include "cohort/data/record_io.h"
#include "event_file.pb.h"

namespace cohort::train {

// The time of an event, in seconds since 1970.
double event_time();

// A summary that waits to be written.
struct EventEntry {
  proto::Event event;
  std::optional<double> scalar;  // with all of its digits
  std::size_t bytes = 0;         // of the event, about
};

// Where a SummaryWriter's entries go. Used from one thread at a time.
class EventSink {
 public:
  virtual ~EventSink() = default;
  virtual const std::string& path() const = 0;  // for messages
  virtual void write(const EventEntry& entry) = 0;
  // Makes all that was written readable by others.
  virtual void flush() = 0;
  virtual void close() = 0;
};

// An event file, and one of JSON by option. Used from one thread at a time. Errors name the file.
class EventFiles final : public EventSink {
 public:
  // Makes the folder, if it is not there, and the files with names that no other process uses.
  // Other programs can read the first event at once.
  EventFiles(const std::string& folder, bool has_jsonl);

  const std::string& path() const override { return path_; }  // of the event file
  void write(const EventEntry& entry) override;
  void flush() override;
  void close() override;

 private:
  std::string path_;
  std::unique_ptr<RecordWriter> events_;
  std::unique_ptr<data::FileSink> lines_;  // nullptr: no JSON is written
  std::string record_;                     // kept for its memory
};

}  // namespace cohort::train
