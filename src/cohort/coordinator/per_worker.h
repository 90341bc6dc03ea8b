// SPDX-License-Identifier: Apache-2.0
// Datasets and iterators of which every worker has its own (tf's PerWorkerValues).
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "cohort/core/nest.h"
#include "cohort/data/element.h"

namespace cohort {

namespace coordinator {
class IteratorHandle;  // coordinator/internal/iterator_handle.h
class Runtime;
class WorkerDatasets;  // coordinator/internal/worker_datasets.h
}  // namespace coordinator

// The iterators of one iterator() call, one on each worker; an argument for schedule(). When the
// last copy has gone, the workers forget theirs at the next iterator() call. Thread-safe.
class COHORT_API PerWorkerIterator {
 public:
  explicit PerWorkerIterator(std::shared_ptr<coordinator::IteratorHandle> handle)
      : handle_(std::move(handle)) {}
  operator Nest() const;  // NOLINT: an argument like others
  const ElementSpec& element_spec() const;

 private:
  std::shared_ptr<coordinator::IteratorHandle> handle_;
};

// Holds the C++ functions of its map() and filter(), as its iterators do. A worker that meets an
// element of a shape for which they were not traced, as text of another length, asks for a program
// and waits: they are traced again, on the next thread in schedule(), join(), done(), fetch(),
// run_epoch() or Epoch::next(). So what they capture by reference must outlive the iterators, and
// what they capture must not change. CoordinatorOptions::dataset_shapes_max bounds such traces.
// Thread-safe.
class COHORT_API PerWorkerDataset {
 public:
  PerWorkerDataset(std::shared_ptr<coordinator::WorkerDatasets> datasets,
                   std::shared_ptr<coordinator::Runtime> runtime);
  // Fresh iterators on every worker, for schedule(), whose end is an error there; a worker that is
  // away gets its own when it returns. Blocks for one control call a worker, under
  // ClusterOptions::timeout each. What a worker finds wrong with the dataset is thrown as it says
  // it; failed_precondition inside a scheduled function, cancelled after the coordinator's end.
  PerWorkerIterator iterator() const;
  const ElementSpec& element_spec() const;
  const std::shared_ptr<coordinator::WorkerDatasets>& datasets() const { return datasets_; }

 private:
  std::shared_ptr<coordinator::WorkerDatasets> datasets_;  // also its iterators'
  std::shared_ptr<coordinator::Runtime> runtime_;
};

}  // namespace cohort
