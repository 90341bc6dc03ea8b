// SPDX-License-Identifier: Apache-2.0
// The datasets of one create_per_worker_dataset() or distribute_dataset() call, and the programs of
// their functions that are traced while workers run them.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cohort/core/detail/mutex.h"
#include "cohort/core/error.h"
#include "cohort/core/tensor_spec.h"
#include "cohort/data/dataset.h"
#include "cohort/data/detail/shipped_dataset.h"
#include "cohort/data/element.h"

namespace cohort::coordinator {

// Counts the passes over one dataset: each shuffles in another order.
using EpochCounter = std::atomic<std::uint64_t>;

// Thread-safe. Holds the datasets, and with them the functions that are traced.
class WorkerDatasets {
 public:
  // `datasets`: each worker's, or one for all. Ships them. `shapes_max`:
  // CoordinatorOptions::max_traces_per_dataset_function. `epochs`: shared by all that are one
  // dataset's.
  WorkerDatasets(const std::vector<Dataset>& datasets, std::size_t shapes_max,
                 std::shared_ptr<EpochCounter> epochs = std::make_shared<EpochCounter>(0));

  const ElementSpec& spec() const { return *spec_; }
  const std::shared_ptr<const ElementSpec>& shared_spec() const { return spec_; }
  // Dataset::cardinality() of each.
  const std::vector<std::int64_t>& cardinalities() const { return cardinalities_; }
  std::int64_t cardinality_of(std::uint32_t worker) const {
    return cardinalities_[index_of(worker)];
  }
  // data::why_order_may_change() of the first one that does.
  const std::string& changing_order() const { return changing_order_; }
  // Whether every worker has the same one.
  bool are_all_alike() const;
  // The number of the pass that begins.
  std::uint64_t begin_epoch() { return (*epochs_)++; }

  // As data::load_shipped() reads them, with the programs made until now.
  Bytes bytes_of(std::uint32_t worker) const;
  // Whether a program of the function for the one is one for the other: they have one dataset, or
  // shards of one, so that the function is one object in both.
  bool have_one(std::uint32_t worker, std::uint32_t other, const std::string& function) const;

  struct Answer {
    Bytes program;
    std::optional<Error> error;  // in place of a program
    bool is_new = false;         // traced by this call
  };
  // The program of the function (as data::ProgramSupply names it) for elements of the specs of
  // `element`, traced on this thread where there is none for this worker or another that has the
  // same function. Throws nothing but for want of memory.
  Answer program_for(std::uint32_t worker, const std::string& function, const Fields& element);

 private:
  // A function of one dataset, and of those that have the same.
  using FunctionOf = std::pair<std::size_t, std::string>;
  struct Traced {
    std::vector<std::pair<std::vector<TensorSpec>, Bytes>> programs;
  };
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
  const std::shared_ptr<EpochCounter> epochs_;
  const std::size_t shapes_max_;
  Mutex tracing_;  // one trace at a time, so that none is made twice
  mutable Mutex mutex_;
  // By the first dataset that has the function.
  std::map<FunctionOf, Traced> traced_ COHORT_GUARDED_BY(mutex_);
  // Of each function that was asked for: the first dataset with the same, for each dataset.
  std::map<std::string, std::vector<std::size_t>> owners_ COHORT_GUARDED_BY(mutex_);
};

}  // namespace cohort::coordinator
