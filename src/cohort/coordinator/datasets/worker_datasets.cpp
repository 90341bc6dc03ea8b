// SPDX-License-Identifier: Apache-2.0
#include "cohort/coordinator/datasets/worker_datasets.h"

#include <algorithm>

#include "cohort/core/log.h"
#include "cohort/data/dataset_traits.h"
#include "cohort/data/program_supply.h"
#include "cohort/function/call_signature.h"

namespace cohort::coordinator {
namespace {

// After this many shapes of one function a warning is logged: each has cost a wait on a worker and
// a trace in this process.
constexpr std::size_t kShapesBeforeWarning = 64;

std::string described(const std::vector<TensorSpec>& specs) {
  return ElementSpec::tuple(specs).to_string();
}

// The cardinality may be unknown here, since the files of a dataset may exist only on the workers.
std::int64_t known_cardinality(const Dataset& dataset) {
  try {
    return dataset.cardinality();
  } catch (const Error& error) {
    log_debug("the number of elements is not known: ", error.what());
    return kUnknownCardinality;
  }
}

}  // namespace

WorkerDatasets::WorkerDatasets(const std::vector<Dataset>& datasets, std::size_t shapes_max,
                               std::shared_ptr<Passes> passes)
    : datasets_(data::ship_to_workers(datasets)),
      spec_(std::make_shared<const ElementSpec>(datasets.front().element_spec())),
      passes_(std::move(passes)),
      shapes_max_(shapes_max) {
  for (const Dataset& dataset : datasets) {
    cardinalities_.push_back(known_cardinality(dataset));
    if (changing_order_.empty()) changing_order_ = data::why_order_may_change(dataset);
  }
}

bool WorkerDatasets::are_all_alike() const {
  return std::all_of(datasets_.begin(), datasets_.end(), [&](const auto& dataset) {
    return dataset->has_same_bytes(*datasets_.front());
  });
}

bool WorkerDatasets::share_function(std::uint32_t worker, std::uint32_t other,
                                    const std::string& function) const {
  const Lock lock(mutex_);
  return owner_of(index_of(worker), function) == owner_of(index_of(other), function);
}

WorkerDatasets::FunctionOf WorkerDatasets::owner_of(std::size_t dataset,
                                                    const std::string& function) const {
  const auto found = owners_.find(function);
  return {found == owners_.end() ? dataset : found->second[dataset], function};
}

// Computes without the lock, since the datasets inspect graphs, which may call the user's code for
// specs.
void WorkerDatasets::find_owners(const std::string& function) {
  {
    const Lock lock(mutex_);
    if (owners_.contains(function)) return;
  }
  std::vector<std::size_t> owners;
  for (std::size_t i = 0; i < datasets_.size(); ++i) {
    std::size_t owner = 0;
    while (owner < i && !datasets_[i]->has_same(function, *datasets_[owner])) ++owner;
    owners.push_back(owner);
  }
  const Lock lock(mutex_);
  owners_.emplace(function, std::move(owners));
}

Bytes WorkerDatasets::bytes_of(std::uint32_t worker) const {
  std::vector<data::FunctionProgram> programs;
  {
    const Lock lock(mutex_);
    for (const auto& [owner, traced] : traced_) {
      if (owner != owner_of(index_of(worker), owner.second)) continue;
      for (const auto& [specs, program] : traced) programs.push_back({owner.second, program});
    }
  }
  return data::with_programs(datasets_[index_of(worker)]->bytes(), programs);
}

const Bytes* WorkerDatasets::known(const FunctionOf& owner,
                                   const std::vector<TensorSpec>& specs) const {
  const auto found = traced_.find(owner);
  if (found == traced_.end()) return nullptr;
  for (const auto& [element, program] : found->second) {
    if (element == specs) return &program;
  }
  return nullptr;
}

// Limits the traces of a pipeline whose elements all have different shapes.
void WorkerDatasets::check_bound(const std::string& name, const Traced& traced,
                                 const std::vector<TensorSpec>& specs) const {
  if (traced.size() < shapes_max_) return;
  const std::string before = traced.empty() ? "" : ", after " + described(traced.back().first);
  throw Error(ErrorCode::resource_exhausted,
              "[coordinator.trace] expected elements of at most " + std::to_string(shapes_max_) +
                  " more shapes for '" + name + "' of a per-worker dataset, got " +
                  described(specs) + before +
                  "; each shape needs a trace: pad elements before map(), as with "
                  "padded_batch(…, {.padded_shapes = …}), or raise "
                  "CoordinatorOptions::max_traces_per_dataset_function",
              ErrorCause::closure_input);
}

void WorkerDatasets::warn_of_many(const std::string& name, const Traced& traced) const {
  if (traced.size() != kShapesBeforeWarning) return;
  const std::size_t last = traced.size() - 1;
  log_warn("'", name, "' of a per-worker dataset was traced for ", traced.size(),
           " shapes of elements beyond those it was shipped with, the last time for ",
           described(traced[last].first), " after ", described(traced[last - 1].first),
           ": a worker waits for each; padded_batch() before map() makes them fewer, and at most ",
           shapes_max_, " are allowed (CoordinatorOptions::max_traces_per_dataset_function)");
}

WorkerDatasets::Answer WorkerDatasets::program_for(std::uint32_t worker,
                                                   const std::string& function,
                                                   const Fields& element) {
  std::vector<TensorSpec> specs = function::specs_of(element);
  const Lock tracing(tracing_);
  try {
    const std::string name = datasets_[index_of(worker)]->name_of(function);
    find_owners(function);
    FunctionOf owner;
    {
      const Lock lock(mutex_);
      owner = owner_of(index_of(worker), function);
      if (const Bytes* program = known(owner, specs)) return {.program = *program};
      check_bound(name, traced_[owner], specs);
    }
    Bytes program = datasets_[owner.first]->trace(function, element);
    const Lock lock(mutex_);
    Traced& traced = traced_[owner];
    traced.emplace_back(std::move(specs), program);
    warn_of_many(name, traced);
    return {.program = std::move(program), .error = {}, .is_new = true};
  } catch (...) {
    return {.program = {}, .error = current_error(), .is_new = false};
  }
}

}  // namespace cohort::coordinator
