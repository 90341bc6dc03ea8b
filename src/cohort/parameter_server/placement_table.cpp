// SPDX-License-Identifier: Apache-2.0
#include "cohort/parameter_server/placement_table.h"

#include <mutex>

#include "cohort/core/error.h"

namespace cohort::parameter_server {

void PlacementTable::take(const rpc::Placement& placement) {
  const std::unique_lock lock(mutex_);
  if (placement.version < version_) return;
  if (placement.version > version_) slices_.clear();
  for (const rpc::Slice& slice : placement.slices) slices_[slice.variable] = slice;
  version_ = placement.version;
}

rpc::Placement PlacementTable::find(std::span<const std::uint64_t> variables) const {
  const std::shared_lock lock(mutex_);
  rpc::Placement placement{.version = version_, .slices = {}};
  placement.slices.reserve(variables.size());
  for (const std::uint64_t variable : variables) {
    const auto place = slices_.find(variable);
    if (place == slices_.end()) {
      throw Error(ErrorCode::not_found,
                  "[server.find] expected a variable whose server is known here, got "
                  "number " +
                      std::to_string(variable) + ", whose server the coordinator has not named",
                  ErrorCause::handle_lost);
    }
    placement.slices.push_back(place->second);
  }
  return placement;
}

}  // namespace cohort::parameter_server
