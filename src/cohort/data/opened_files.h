// SPDX-License-Identifier: Apache-2.0
// The files that a pipeline reads, as they were when it opened them first. A pipeline that runs
// again, to continue where an earlier run stopped, must read the same files. Otherwise elements
// would come twice or never.
//
//   auto files = std::make_shared<OpenedFiles>();                  // of the first run
//   auto source = cancellable_source(dataset, options, stop, files);
//   …                                                              // the run is lost
//   auto again = std::make_shared<OpenedFiles>(files->take_new());  // of the second run
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cohort/core/error.h"
#include "cohort/core/export.h"
#include "cohort/core/file_fingerprint.h"
#include "cohort/core/mutex.h"

namespace cohort::data {

// Thread-safe.
class COHORT_API OpenedFiles {
 public:
  // `before`: the files that take_new() returned in earlier runs of the same pipeline.
  explicit OpenedFiles(std::vector<FileFingerprint> before = {});

  // A source calls this before it opens a file. It throws data_loss if the file differs from what
  // an earlier run, or this one, has read; the error names the file, the change and the remedy.
  // Reads at most 8 MiB, and nothing if the file was not touched since the last call. `path`: as
  // the pipeline names it; `found`: where it is here; `op` is for messages.
  void note(const std::string& path, const std::string& found, std::string_view op);
  // Does the same for a file of which only the size still matters.
  void note_size(const std::string& path, const std::string& found, std::string_view op);

  // Throws the first error of note() again. An op may have dropped that error (ignore_errors), and
  // the elements after it may differ from the earlier ones.
  void check() const;
  // The files that were noted since the last call, without those of earlier runs.
  std::vector<FileFingerprint> take_new();

 private:
  // The part of a file's metadata that shows a change without reading it: equal stamps mean equal
  // content on this host. A file that was changed just now has no stamp.
  struct Stamp {
    std::uint64_t device = 0;
    std::uint64_t inode = 0;
    std::int64_t changed_ns = 0;
    std::uint64_t size_bytes = 0;
    bool operator==(const Stamp&) const = default;
  };
  struct Known {
    FileFingerprint file;
    std::optional<Stamp> stamp = {};  // of the last comparison of contents; nullopt: an earlier run
  };

  static std::optional<Stamp> stamp_of(const std::string& found);
  void add(const FileFingerprint& now, const std::optional<Stamp>& stamp, std::string_view op);
  void warn_of_copy(const FileFingerprint& before, const FileFingerprint& now)
      COHORT_REQUIRES(mutex_);

  mutable Mutex mutex_;
  std::map<std::string, Known> files_ COHORT_GUARDED_BY(mutex_);  // by path
  std::vector<FileFingerprint> new_ COHORT_GUARDED_BY(mutex_);
  std::optional<Error> error_ COHORT_GUARDED_BY(mutex_);
  bool has_warned_ COHORT_GUARDED_BY(mutex_) = false;
  std::atomic<bool> has_new_{false};
  std::atomic<bool> has_error_{false};
};

}  // namespace cohort::data
