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
struct PerWorkerData;  // coordinator/internal/per_worker_data.h
class Runtime;
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

// A shared handle. Thread-safe.
class COHORT_API PerWorkerDataset {
 public:
  PerWorkerDataset(std::shared_ptr<const coordinator::PerWorkerData> data,
                   std::shared_ptr<coordinator::Runtime> runtime);
  // Fresh iterators on every worker, for schedule(), whose end is an error there; a worker that is
  // away gets its own when it returns. Blocks for one control call a worker, under
  // ClusterOptions::timeout each. What a worker finds wrong with the dataset is thrown as it says
  // it; failed_precondition inside a scheduled function, cancelled after the coordinator's end.
  PerWorkerIterator iterator() const;
  const ElementSpec& element_spec() const;
  const std::shared_ptr<const coordinator::PerWorkerData>& data() const { return data_; }

 private:
  std::shared_ptr<const coordinator::PerWorkerData> data_;
  std::shared_ptr<coordinator::Runtime> runtime_;
};

}  // namespace cohort
