// SPDX-License-Identifier: Apache-2.0
// The files that each worker has read in one epoch, with their fingerprints when they were first
// opened. A worker that returns gets its own, and refuses files that have changed since.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "cohort/core/file_fingerprint.h"
#include "cohort/core/mutex.h"

namespace cohort::coordinator {

// Thread-safe.
class WorkerFiles {
 public:
  // Replaces an earlier fingerprint of a file, since the later one includes the file's content.
  void note(std::uint32_t worker, std::vector<FileFingerprint> files) {
    if (files.empty()) return;
    const Lock lock(mutex_);
    for (FileFingerprint& file : files) {
      std::string path = file.path;
      files_[worker].insert_or_assign(std::move(path), std::move(file));
    }
  }

  // The files of one worker, sorted by path.
  std::vector<FileFingerprint> of(std::uint32_t worker) const {
    const Lock lock(mutex_);
    std::vector<FileFingerprint> files;
    const auto found = files_.find(worker);
    if (found == files_.end()) return files;
    for (const auto& [path, file] : found->second) files.push_back(file);
    return files;
  }

 private:
  mutable Mutex mutex_;
  std::map<std::uint32_t, std::map<std::string, FileFingerprint>> files_ COHORT_GUARDED_BY(mutex_);
};

}  // namespace cohort::coordinator
