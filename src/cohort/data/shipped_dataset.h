// SPDX-License-Identifier: Apache-2.0
// A dataset that was shipped to workers, with the C++ functions that its bytes were traced from.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "cohort/core/bytes.h"
#include "cohort/core/export.h"
#include "cohort/core/mutex.h"
#include "cohort/data/dataset.h"
#include "cohort/data/element.h"
#include "cohort/function/frozen_tensor.h"
#include "cohort/function/tracing_mode.h"

namespace cohort::data {

// Keeps the functions alive, so that they can be traced for elements of other shapes while workers
// run the pipeline (ProgramSupply). Thread-safe.
class COHORT_API ShippedDataset {
 public:
  // Of each op of the graph: what its functions' programs hold as constants.
  using Frozen = std::vector<std::vector<function::FrozenTensor>>;

  ShippedDataset(Dataset dataset, Bytes bytes, Frozen frozen);

  const Bytes& bytes() const { return bytes_; }
  // The name that the user gave the function. data_loss for one that the bytes do not have.
  std::string name_of(const std::string& function) const;
  // A program of the function for elements of the specs of `element`, traced on this thread in the
  // modes of the thread that shipped the dataset. Throws what the function throws for this element,
  // with the cause `application`; every other error has the cause `closure_input`: the function
  // cannot be traced for it, or a tensor that it captures was written to since.
  Bytes trace(const std::string& function, const Fields& element) const;

 private:
  using Nodes = std::vector<std::shared_ptr<const Node>>;
  const Nodes& nodes_of(const std::string& function) const COHORT_REQUIRES(mutex_);
  Bytes trace_alike(const Nodes& nodes, const Fields& element) const;
  void check_current(const std::string& function) const COHORT_REQUIRES(mutex_);

  const Dataset dataset_;
  const Bytes bytes_;
  const function::TracingMode mode_;
  mutable Mutex mutex_;  // held while a function is traced
  mutable Frozen frozen_ COHORT_GUARDED_BY(mutex_);
  // The op that has the function; of one inside a dataset function that of several of its graphs,
  // made of different elements.
  mutable std::map<std::string, Nodes> nodes_ COHORT_GUARDED_BY(mutex_);
};

// Dataset::serialize() for workers of the same job, a dataset each: warns of state that the bytes
// leave behind (ExternalStatePolicy), once for all, whatever the datasets' own policy says, as all
// distribution does (spec 1.3).
COHORT_API std::vector<std::shared_ptr<const ShippedDataset>> ship_to_workers(
    const std::vector<Dataset>& datasets);

}  // namespace cohort::data
