// SPDX-License-Identifier: Apache-2.0
#include "cohort/train/summaries/event_files.h"

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <climits>
#include <filesystem>
#include <system_error>

#include "cohort/core/error.h"
#include "cohort/core/system_error.h"
#include "cohort/train/json_number.h"

namespace cohort::train {
namespace {

constexpr const char* kVersion = "brain.Event:2";

// "<seconds since 1970, ten digits>.<host>.<pid>.<number of the file in this process>".
std::string unique_suffix() {
  static std::atomic<std::uint64_t> next_number{0};
  char host[HOST_NAME_MAX + 1] = {};
  if (::gethostname(host, HOST_NAME_MAX) != 0) host[0] = '\0';
  std::string seconds = std::to_string(static_cast<std::int64_t>(event_time()));
  seconds.insert(0, seconds.size() < 10 ? 10 - seconds.size() : 0, '0');
  return seconds + "." + (host[0] == '\0' ? "localhost" : host) + "." + std::to_string(::getpid()) +
         "." + std::to_string(next_number++);
}

void make_folder(const std::string& folder) {
  COHORT_CHECK(!folder.empty(), ErrorCode::invalid_argument,
               "[train.summary_writer] expected the path of a folder, got ''");
  std::error_code code;
  std::filesystem::create_directories(folder, code);
  COHORT_CHECK(!code, code_of_file_errno(code.value()),
               "[train.summary_writer] expected to make folder '", folder,
               "', got: ", text_of_errno(code.value()),
               "; give a path below a folder in which this process may write");
}

}  // namespace

double event_time() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration<double>(now).count();
}

EventFiles::EventFiles(const std::string& folder, bool has_jsonl) {
  make_folder(folder);
  const std::string suffix = unique_suffix();
  path_ = folder + "/events.out.tfevents." + suffix;
  events_ = std::make_unique<RecordWriter>(path_);
  // TensorBoard takes each file with "tfevents" in its name for one of events.
  if (has_jsonl) {
    lines_ = data::create_file(folder + "/scalars." + suffix + ".jsonl", Compression::none,
                               "summary_writer");
  }
  EventEntry first;
  first.event.set_wall_time(event_time());
  first.event.set_file_version(kVersion);
  write(first);
  flush();
}

void EventFiles::write(const EventEntry& entry) {
  COHORT_ASSERT(entry.event.SerializeToString(&record_));
  events_->write(record_);
  if (lines_ == nullptr || !entry.scalar) return;
  const Json line{{"wall_time", entry.event.wall_time()},
                  {"step", entry.event.step()},
                  {"tag", entry.event.summary().value(0).tag()},
                  {"value", json_of(*entry.scalar)}};
  lines_->write(line.dump() + "\n");
}

void EventFiles::flush() {
  events_->flush();
  if (lines_ != nullptr) lines_->flush();
}

void EventFiles::close() {
  events_->close();
  if (lines_ != nullptr) lines_->close();
}

}  // namespace cohort::train
