// SPDX-License-Identifier: Apache-2.0
// Snapshots of a store: values of one moment that pulls read while updates go on.
#include <mutex>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "cohort/core/error.h"
#include "cohort/parameter_server/parameter_store.h"

namespace cohort {

void ParameterStore::take_snapshot(const rpc::SnapshotRequest& request) {
  check_placement(request.placement);
  const std::unique_lock alone(pushing_);
  Variables copies;
  for (const std::uint64_t id : request.variables)
    copies[id] = std::visit([](const auto& each) -> Stored { return each->frozen(); }, find(id));
  const std::unique_lock lock(mutex_);
  const bool is_new = snapshots_.try_emplace(request.snapshot, std::move(copies)).second;
  COHORT_CHECK(is_new && request.snapshot != 0, ErrorCode::already_exists,
               "[server.snapshot] expected a number above 0 that no snapshot has, got ",
               request.snapshot);
}

// The variables keep a replaced value as a spare buffer, which is freed here, too.
void ParameterStore::erase_snapshots(const rpc::EraseRequest& request) {
  std::vector<std::unordered_map<std::uint64_t, Variables>::node_type> erased;
  std::vector<Stored> kept;
  {
    const std::unique_lock lock(mutex_);
    for (const std::uint64_t id : request.variables) {
      erased.push_back(snapshots_.extract(id));
      if (erased.back().empty()) continue;
      for (const auto& [variable, copy] : erased.back().mapped())
        if (const auto found = variables_.find(variable); found != variables_.end())
          kept.push_back(found->second);
    }
  }
  erased.clear();
  for (const Stored& each : kept) {
    if (const auto* variable =
            std::get_if<std::shared_ptr<parameter_server::StoredVariable>>(&each))
      (*variable)->drop_spares();
  }
}

ParameterStore::Stored ParameterStore::find_in(std::uint64_t snapshot, std::uint64_t id) const {
  const std::shared_lock lock(mutex_);
  const auto values = snapshots_.find(snapshot);
  if (values == snapshots_.end()) {
    throw Error(ErrorCode::not_found,
                "[server.pull] expected values that were kept when an evaluation began, got none: "
                "this server was restarted since; run the evaluation again",
                ErrorCause::handle_lost);
  }
  const auto found = values->second.find(id);
  if (found == values->second.end()) {
    throw Error(ErrorCode::failed_precondition,
                "[server.pull] expected a variable whose value was kept when the epoch began, got "
                "one that the step also updates, or that it reads for elements of some shapes "
                "only; with reads_snapshot a step reads or updates a variable, not both, and reads "
                "the same ones for elements of all shapes",
                ErrorCause::application);
  }
  return found->second;
}

}  // namespace cohort
