// SPDX-License-Identifier: Apache-2.0
#include "cohort/coordinator/datasets/distributed_datasets.h"

#include <algorithm>
#include <optional>
#include <string>

#include "cohort/core/error.h"
#include "cohort/core/log.h"
#include "cohort/data/auto_shard.h"
#include "cohort/data/dataset_traits.h"

namespace cohort::coordinator {
namespace {

// The number of datasets whose parts are kept.
constexpr std::size_t kDatasetsKept = 4;

}  // namespace

std::shared_ptr<WorkerDatasets> DistributedDatasets::ship(const std::vector<Dataset>& datasets) {
  auto shipped = std::make_shared<WorkerDatasets>(datasets, shapes_max_);
  warn_of_whole(*shipped);
  return shipped;
}

std::shared_ptr<WorkerDatasets> DistributedDatasets::find(const Dataset& dataset) {
  const auto found = std::find_if(kept_.begin(), kept_.end(), [&](const auto& known) {
    return known.first.node() == dataset.node();
  });
  if (found == kept_.end()) return nullptr;
  std::rotate(found, found + 1, kept_.end());
  return kept_.back().second;
}

// They outlive the kept parts: otherwise the shuffle order would start again with the first pass.
std::shared_ptr<Passes> DistributedDatasets::passes_of(const Dataset& dataset) {
  const Lock lock(mutex_);
  std::erase_if(passes_, [](const auto& known) { return known.first.expired(); });
  for (const auto& [node, passes] : passes_) {
    // Compares without lock(), which could make this thread destroy the last copy of the user's
    // objects.
    if (!node.owner_before(dataset.node()) && !dataset.node().owner_before(node)) return passes;
  }
  return passes_.emplace_back(dataset.node(), std::make_shared<Passes>()).second;
}

std::vector<Dataset> DistributedDatasets::parts_of(const Dataset& dataset) const {
  data::check_order_is_fixed(dataset, "coordinator.distribute_dataset",
                             "create_per_worker_dataset(fn)");
  AutoShardOptions options{.num_workers = num_workers_, .too_few_files = TooFewFiles::data};
  options.policy = shard_decision(dataset, options).taken;  // shard_decision() does not warn
  std::vector<Dataset> parts;
  for (options.index = 0; options.index < num_workers_; ++options.index)
    parts.push_back(auto_shard(dataset, options));
  return parts;
}

std::shared_ptr<WorkerDatasets> DistributedDatasets::distribute(const Dataset& dataset) {
  {
    const Lock lock(mutex_);
    if (auto known = find(dataset)) return known;
  }
  const std::vector<Dataset> parts = parts_of(dataset);
  auto datasets = std::make_shared<WorkerDatasets>(parts, shapes_max_, passes_of(dataset));
  // Destroyed after the lock is released.
  std::optional<std::pair<Dataset, std::shared_ptr<WorkerDatasets>>> oldest;
  const Lock lock(mutex_);
  if (auto known = find(dataset)) return known;  // another thread has made the parts meanwhile
  if (kept_.size() == kDatasetsKept) {
    oldest = std::move(kept_.front());
    kept_.erase(kept_.begin());
  }
  kept_.emplace_back(dataset, datasets);
  return datasets;
}

void DistributedDatasets::warn_of_whole(const WorkerDatasets& datasets) {
  const std::int64_t count = datasets.cardinalities().front();
  if (num_workers_ < 2 || !datasets.are_all_alike() || count == kInfiniteCardinality || count == 0)
    return;
  {
    const Lock lock(mutex_);
    if (std::exchange(has_warned_of_whole_, true)) return;
  }
  log_warn("every one of the ", num_workers_, " workers has the same dataset",
           count >= 0 ? " of " + std::to_string(count) + " elements" : std::string(),
           ", without shard(): each element is used that often in one pass; "
           "coordinator.distribute_dataset(dataset) gives each worker its own part, and so does "
           "dataset.shard(context) in create_per_worker_dataset(fn)");
}

}  // namespace cohort::coordinator
