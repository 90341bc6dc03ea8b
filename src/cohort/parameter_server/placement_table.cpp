// SPDX-License-Identifier: Apache-2.0
#include "cohort/parameter_server/placement_table.h"

#include <limits>
#include <mutex>
#include <utility>

#include "cohort/core/error.h"

namespace cohort::parameter_server {
namespace {

constexpr std::int64_t kRowsMax = std::numeric_limits<std::int64_t>::max();

void check_order(std::span<const rpc::Slice> slices) {
  std::int64_t next = 0;
  for (const rpc::Slice& slice : slices) {
    const bool is_next = slice.first_row == next;
    bool follows = slice.is_by_key() == slices.front().is_by_key();
    if (slice.is_whole()) {
      follows = slices.size() == 1;
    } else {
      const bool is_counted = slice.rows > 0 && slice.rows <= kRowsMax - next;
      follows = follows && is_next && (slice.is_by_key() || is_counted);
    }
    COHORT_CHECK(follows, ErrorCode::invalid_argument, "[server.place_variables] expected slices ",
                 "of variable ", slice.variable, " that have all rows in order, got ", slice.rows,
                 " rows from row ", slice.first_row, " after row ", next);
    next += slice.is_by_key() ? 1 : slice.rows;
  }
}

}  // namespace

void Places::add(std::span<const rpc::Slice> slices) {
  slices_.insert(slices_.end(), slices.begin(), slices.end());
  first_.push_back(slices_.size());
}

void PlacementTable::take(const rpc::Placement& placement) {
  std::unordered_map<std::uint64_t, std::vector<rpc::Slice>> taken;
  for (const rpc::Slice& slice : placement.slices) taken[slice.variable].push_back(slice);
  for (const auto& [variable, slices] : taken) check_order(slices);
  const std::unique_lock lock(mutex_);
  if (placement.version < version_) return;
  if (placement.version > version_) slices_.clear();
  for (auto& [variable, slices] : taken) slices_[variable] = std::move(slices);
  version_ = placement.version;
}

Places PlacementTable::find(std::span<const std::uint64_t> variables) const {
  const std::shared_lock lock(mutex_);
  Places places(version_);
  for (const std::uint64_t variable : variables) {
    const auto place = slices_.find(variable);
    if (place == slices_.end()) {
      throw Error(ErrorCode::not_found,
                  "[server.find] expected a variable whose server is known here, got "
                  "number " +
                      std::to_string(variable) + ", whose server the coordinator has not named",
                  ErrorCause::handle_lost);
    }
    places.add(place->second);
  }
  return places;
}

rpc::Placement PlacementTable::message(std::span<const std::uint64_t> variables) const {
  const Places places = find(variables);
  return {.version = places.version(), .slices = {places.parts().begin(), places.parts().end()}};
}

std::vector<rpc::Slice> PlacementTable::erase(std::span<const std::uint64_t> variables) {
  std::vector<rpc::Slice> erased;
  const std::unique_lock lock(mutex_);
  for (const std::uint64_t variable : variables) {
    const auto place = slices_.find(variable);
    if (place == slices_.end()) continue;
    const std::vector<rpc::Slice> slices = std::move(place->second);
    slices_.erase(place);
    // A shard is also here as a variable of its own.
    for (const rpc::Slice& slice : slices)
      if (!slice.is_whole()) slices_.erase(slice.shard);
    erased.insert(erased.end(), slices.begin(), slices.end());
  }
  return erased;
}

}  // namespace cohort::parameter_server
