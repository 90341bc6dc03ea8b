// SPDX-License-Identifier: Apache-2.0
// An argument of a scheduled function that names a resource on the workers.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cohort/coordinator/cluster_coordinator.h"
#include "cohort/coordinator/datasets/worker_datasets.h"
#include "cohort/core/file_fingerprint.h"
#include "cohort/core/mutex.h"
#include "cohort/core/random.h"
#include "cohort/rpc/control.h"

namespace cohort::coordinator {

// The files that each worker has read in one epoch, with their fingerprints when they were first
// opened. A worker that returns gets its own, and refuses files that have changed since.
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

// One iterator, or one per-worker value, on every worker. Thread-safe.
class IteratorHandle final : public Handle {
 public:
  // How the workers use their datasets.
  struct Use {
    std::optional<Pass> pass = {};  // of an epoch, to which it belongs
    bool is_value = false;          // a per-worker value: the first element alone
  };
  IteratorHandle(std::uint64_t id, std::shared_ptr<WorkerDatasets> datasets, const Use& use,
                 std::weak_ptr<Runtime> runtime)
      : id_(id), datasets_(std::move(datasets)), use_(use), runtime_(std::move(runtime)) {
    for (std::size_t i = 0; use.pass && i < use.pass->files.size(); ++i)
      files_->note(static_cast<std::uint32_t>(i), use.pass->files[i]);
  }
  ~IteratorHandle() override;
  IteratorHandle(const IteratorHandle&) = delete;
  IteratorHandle& operator=(const IteratorHandle&) = delete;

  std::string_view handle_kind() const override {
    return use_.is_value ? "per-worker value" : "per-worker iterator";
  }
  bool is_value() const { return use_.is_value; }
  std::uint64_t id() const { return id_; }
  const ElementSpec& spec() const { return datasets_->spec(); }
  bool is_of(const Runtime& runtime) const { return runtime_.lock().get() == &runtime; }
  WorkerDatasets& datasets() const { return *datasets_; }
  const std::shared_ptr<WorkerDatasets>& shared_datasets() const { return datasets_; }
  // The files that the workers have read; only for an epoch's iterator.
  const std::shared_ptr<WorkerFiles>& files() const { return files_; }
  // The seed of its datasets' random numbers.
  std::uint64_t seed(std::uint64_t job_seed) const {
    return use_.pass && use_.pass->was_begun() ? use_.pass->seed : mix_seed(job_seed, id_);
  }
  // The worker's part of the iterator, with the programs that exist by now.
  rpc::IteratorSpec spec_for(std::uint32_t worker, std::uint64_t job_seed) const {
    return {.id = id_,
            .dataset = datasets_->bytes_of(worker),
            .seed = seed(job_seed),
            .epoch = use_.pass ? std::optional(use_.pass->number) : std::nullopt,
            .files = files_->of(worker),
            .is_value = use_.is_value};
  }

 private:
  const std::uint64_t id_;
  std::shared_ptr<WorkerDatasets> datasets_;  // shared with the PerWorkerDataset
  const Use use_;
  // Shared with the EpochRun.
  const std::shared_ptr<WorkerFiles> files_ = std::make_shared<WorkerFiles>();
  const std::weak_ptr<Runtime> runtime_;
};

}  // namespace cohort::coordinator
