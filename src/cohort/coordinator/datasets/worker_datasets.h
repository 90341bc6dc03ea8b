// SPDX-License-Identifier: Apache-2.0
// The datasets of one create_per_worker_dataset() or distribute_dataset() call, and the programs of
// their functions that are traced while workers run them.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cohort/coordinator/datasets/passes.h"
#include "cohort/core/error.h"
#include "cohort/core/mutex.h"
#include "cohort/core/tensor_spec.h"
#include "cohort/data/dataset.h"
#include "cohort/data/element.h"
#include "cohort/data/shipped_dataset.h"

namespace cohort::coordinator {

// Holds the datasets, and so their functions. Thread-safe.
class WorkerDatasets {
 public:
  // Ships `datasets`: one for each worker, or one for all. `shapes_max`:
  // CoordinatorOptions::max_traces_per_dataset_function. `passes` are shared by all objects for the
  // same dataset.
  WorkerDatasets(const std::vector<Dataset>& datasets, std::size_t shapes_max,
                 std::shared_ptr<Passes> passes = std::make_shared<Passes>());

  const ElementSpec& spec() const { return *spec_; }
  const std::shared_ptr<const ElementSpec>& shared_spec() const { return spec_; }
  // Dataset::cardinality() of each dataset.
  const std::vector<std::int64_t>& cardinalities() const { return cardinalities_; }
  std::int64_t cardinality_of(std::uint32_t worker) const {
    return cardinalities_[index_of(worker)];
  }
  // data::why_order_may_change() of the first dataset whose order may change.
  const std::string& changing_order() const { return changing_order_; }
  // Whether every worker has the same whole dataset.
  bool are_all_alike() const;
  Passes& passes() const { return *passes_; }

  // For data::load_shipped(), with the programs made so far.
  Bytes bytes_of(std::uint32_t worker) const;
  // Whether a program of the function for one worker also serves the other: if they have one
  // dataset, or shards of one, both use the same function object.
  bool share_function(std::uint32_t worker, std::uint32_t other, const std::string& function) const;

  struct Answer {
    Bytes program;
    std::optional<Error> error;  // instead of a program
    bool is_new = false;         // traced by this call
  };
  // The program of the function (named as by data::ProgramSupply) for elements with the specs of
  // `element`. Traces it on this thread if neither this worker nor another with the same function
  // has one. Throws only if memory is short.
  Answer program_for(std::uint32_t worker, const std::string& function, const Fields& element);

 private:
  // A function, named by the first dataset that has it.
  using FunctionOf = std::pair<std::size_t, std::string>;
  // The programs of a function, by the specs of elements.
  using Traced = std::vector<std::pair<std::vector<TensorSpec>, Bytes>>;
  std::size_t index_of(std::uint32_t worker) const { return worker % datasets_.size(); }
  FunctionOf owner_of(std::size_t dataset, const std::string& function) const
      COHORT_REQUIRES(mutex_);
  void find_owners(const std::string& function);
  const Bytes* known(const FunctionOf& owner, const std::vector<TensorSpec>& specs) const
      COHORT_REQUIRES(mutex_);
  void check_bound(const std::string& name, const Traced& traced,
                   const std::vector<TensorSpec>& specs) const;
  void warn_of_many(const std::string& name, const Traced& traced) const;

  const std::vector<std::shared_ptr<const data::ShippedDataset>> datasets_;
  const std::shared_ptr<const ElementSpec> spec_;
  std::vector<std::int64_t> cardinalities_;
  std::string changing_order_;
  const std::shared_ptr<Passes> passes_;
  const std::size_t shapes_max_;
  Mutex tracing_;  // one trace at a time, so that none is made twice
  mutable Mutex mutex_;
  std::map<FunctionOf, Traced> traced_ COHORT_GUARDED_BY(mutex_);
  // For each function that was asked for, and each dataset: the first dataset with the same
  // function.
  std::map<std::string, std::vector<std::size_t>> owners_ COHORT_GUARDED_BY(mutex_);
};

}  // namespace cohort::coordinator
