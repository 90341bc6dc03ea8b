// SPDX-License-Identifier: Apache-2.0
// The datasets that a coordinator has distributed to its workers.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "cohort/coordinator/datasets/worker_datasets.h"
#include "cohort/core/mutex.h"
#include "cohort/data/dataset.h"

namespace cohort::coordinator {

// Thread-safe.
class DistributedDatasets {
 public:
  // `shapes_max`: CoordinatorOptions::max_traces_per_dataset_function.
  DistributedDatasets(std::uint32_t num_workers, std::size_t shapes_max)
      : num_workers_(num_workers), shapes_max_(shapes_max) {}

  // Ships the datasets: one for each worker, or one for all. If every worker gets the same whole
  // dataset, it warns once.
  std::shared_ptr<WorkerDatasets> ship(const std::vector<Dataset>& datasets);
  // A part of the dataset for each worker. The datasets that were used last are kept, since making
  // the parts takes a while. Throws invalid_argument for a dataset whose order may change.
  std::shared_ptr<WorkerDatasets> distribute(const Dataset& dataset);
  // Warns, once, if every worker has the same whole dataset.
  void warn_of_whole(const WorkerDatasets& datasets);

 private:
  std::shared_ptr<WorkerDatasets> find(const Dataset& dataset) COHORT_REQUIRES(mutex_);
  std::shared_ptr<Passes> passes_of(const Dataset& dataset);
  std::vector<Dataset> parts_of(const Dataset& dataset) const;

  const std::uint32_t num_workers_;
  const std::size_t shapes_max_;
  Mutex mutex_;
  // In the order of their last use, the latest last.
  std::vector<std::pair<Dataset, std::shared_ptr<WorkerDatasets>>> kept_ COHORT_GUARDED_BY(mutex_);
  // For all distributed datasets that the user still has.
  std::vector<std::pair<std::weak_ptr<const data::Node>, std::shared_ptr<Passes>>> passes_
      COHORT_GUARDED_BY(mutex_);
  bool has_warned_of_whole_ COHORT_GUARDED_BY(mutex_) = false;
};

}  // namespace cohort::coordinator
