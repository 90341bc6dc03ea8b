// SPDX-License-Identifier: Apache-2.0
#include "cohort/data/opened_files.h"

#include <sys/stat.h>

#include <chrono>
#include <utility>

#include "cohort/core/log.h"

namespace cohort::data {
namespace {

// File systems date changes by clocks whose ticks are at most this long.
constexpr std::chrono::seconds kLongestTick{2};

Error changed_file(const FileFingerprint& now, const std::string& how, std::string_view op) {
  return Error(
      ErrorCode::data_loss,
      "[data." + std::string(op) + "] expected file '" + now.path +
          "' to be as this pass over the data first read it, got a changed file: " + how +
          ": elements would be used twice or never; start the epoch again from saved values, and "
          "do not change its files while it runs",
      ErrorCause::application);
}

}  // namespace

OpenedFiles::OpenedFiles(std::vector<FileFingerprint> before) {
  const Lock lock(mutex_);
  for (FileFingerprint& file : before) {
    std::string path = file.path;
    files_.insert_or_assign(std::move(path), Known{std::move(file)});
  }
}

std::optional<OpenedFiles::Stamp> OpenedFiles::stamp_of(const std::string& found) {
  struct stat status {};
  if (::stat(found.c_str(), &status) != 0) return std::nullopt;
  const std::chrono::nanoseconds changed(nanoseconds_of(status.st_ctim));
  // Another change in the same tick of the file system's clock would have the same time.
  if (std::chrono::system_clock::now().time_since_epoch() - changed < kLongestTick)
    return std::nullopt;
  return Stamp{.device = status.st_dev,
               .inode = status.st_ino,
               .changed_ns = changed.count(),
               .size_bytes = static_cast<std::uint64_t>(status.st_size)};
}

void OpenedFiles::note(const std::string& path, const std::string& found, std::string_view op) {
  // The stamp is taken before the content is read, so that the next call finds a change that is
  // made in between.
  const std::optional<Stamp> stamp = stamp_of(found);
  {
    const Lock lock(mutex_);
    const auto known = files_.find(path);
    if (stamp && known != files_.end() && known->second.stamp == stamp) return;
  }
  add(fingerprint_of(path, found), stamp, op);
}

void OpenedFiles::note_size(const std::string& path, const std::string& found,
                            std::string_view op) {
  add(size_fingerprint_of(path, found), std::nullopt, op);
}

void OpenedFiles::add(const FileFingerprint& now, const std::optional<Stamp>& stamp,
                      std::string_view op) {
  const Lock lock(mutex_);
  const auto [entry, is_new] = files_.try_emplace(now.path, Known{now, stamp});
  Known& known = entry->second;
  if (!is_new) {
    const std::string how = difference(known.file, now);
    if (!how.empty()) {
      Error error = changed_file(now, how, op);
      if (!error_) error_ = error;
      has_error_ = true;
      throw Error(std::move(error));
    }
    warn_of_copy(known.file, now);
    if (stamp) known.stamp = stamp;
    if (known.file.checksum || !now.checksum) return;
    known.file = now;  // its content was not read before
  }
  new_.push_back(now);
  has_new_ = true;
}

// Only some blocks of a large file are compared, so a change between them looks like a copy.
void OpenedFiles::warn_of_copy(const FileFingerprint& before, const FileFingerprint& now) {
  if (!before.checksum || !now.checksum || covers_whole_file(now.size_bytes) ||
      before.modified_ns == now.modified_ns || std::exchange(has_warned_, true))
    return;
  log_warn("file '", now.path, "' has another time of modification than when this pass over the ",
           "data read it first, and the same size; the parts that were compared are equal, so it ",
           "is taken for a copy (and so are others like it)");
}

void OpenedFiles::check() const {
  if (!has_error_) return;
  const Lock lock(mutex_);
  throw Error(*error_);
}

std::vector<FileFingerprint> OpenedFiles::take_new() {
  if (!has_new_) return {};
  const Lock lock(mutex_);
  has_new_ = false;
  return std::exchange(new_, {});
}

}  // namespace cohort::data
