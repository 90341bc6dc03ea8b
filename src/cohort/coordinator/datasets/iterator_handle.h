// SPDX-License-Identifier: Apache-2.0
// An argument of a scheduled function that names a resource on the workers.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>

#include "cohort/coordinator/cluster_coordinator.h"
#include "cohort/coordinator/datasets/worker_datasets.h"
#include "cohort/coordinator/epochs/worker_files.h"
#include "cohort/core/random.h"
#include "cohort/rpc/control.h"

namespace cohort::coordinator {

// One iterator on every worker. Thread-safe.
class IteratorHandle final : public Handle {
 public:
  // `epoch`: the pass over the datasets to which the iterator belongs, if any.
  IteratorHandle(std::uint64_t id, std::shared_ptr<WorkerDatasets> datasets,
                 std::optional<std::uint64_t> epoch, std::weak_ptr<Runtime> runtime)
      : id_(id), datasets_(std::move(datasets)), epoch_(epoch), runtime_(std::move(runtime)) {}
  ~IteratorHandle() override;
  IteratorHandle(const IteratorHandle&) = delete;
  IteratorHandle& operator=(const IteratorHandle&) = delete;

  std::string_view handle_kind() const override { return "per-worker iterator"; }
  std::uint64_t id() const { return id_; }
  const ElementSpec& spec() const { return datasets_->spec(); }
  bool is_of(const Runtime& runtime) const { return runtime_.lock().get() == &runtime; }
  WorkerDatasets& datasets() const { return *datasets_; }
  const std::shared_ptr<WorkerDatasets>& shared_datasets() const { return datasets_; }
  // The files that the workers have read; only for an epoch's iterator.
  const std::shared_ptr<WorkerFiles>& files() const { return files_; }
  // The worker's part of the iterator, with the programs that exist by now.
  rpc::IteratorSpec spec_for(std::uint32_t worker, std::uint64_t job_seed) const {
    return {.id = id_,
            .dataset = datasets_->bytes_of(worker),
            .seed = mix_seed(job_seed, id_),
            .epoch = epoch_,
            .files = files_->of(worker)};
  }

 private:
  const std::uint64_t id_;
  std::shared_ptr<WorkerDatasets> datasets_;  // shared with the PerWorkerDataset
  const std::optional<std::uint64_t> epoch_;
  // Shared with the EpochRun.
  const std::shared_ptr<WorkerFiles> files_ = std::make_shared<WorkerFiles>();
  const std::weak_ptr<Runtime> runtime_;
};

}  // namespace cohort::coordinator
