// SPDX-License-Identifier: Apache-2.0
// Where each variable is.
#pragma once

#include <atomic>
#include <cstdint>
#include <shared_mutex>
#include <span>
#include <unordered_map>

#include "cohort/core/export.h"
#include "cohort/rpc/membership.h"

namespace cohort::parameter_server {

// Thread-safe.
class COHORT_API PlacementTable {
 public:
  // Adds the slices; those of a later version replace all that are here. Ignores an earlier one.
  void take(const rpc::Placement& placement);
  // The result of find() is valid as long as this is its version.
  std::uint64_t version() const { return version_; }
  // In the order of the variables. Throws not_found, with handle_lost, for one that is not here.
  rpc::Placement find(std::span<const std::uint64_t> variables) const;

 private:
  mutable std::shared_mutex mutex_;
  std::atomic<std::uint64_t> version_ = 0;
  std::unordered_map<std::uint64_t, rpc::Slice> slices_;
};

}  // namespace cohort::parameter_server
