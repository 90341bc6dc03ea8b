// SPDX-License-Identifier: Apache-2.0
// Where each variable is.
#pragma once

#include <atomic>
#include <cstdint>
#include <shared_mutex>
#include <span>
#include <unordered_map>
#include <vector>

#include "cohort/core/export.h"
#include "cohort/rpc/membership.h"

namespace cohort::parameter_server {

// Where some variables are: for each its slices, which are the parts in which it is read. A value
// type.
class COHORT_API Places {
 public:
  explicit Places(std::uint64_t version = 0) : version_(version) {}
  void add(std::span<const rpc::Slice> slices);

  std::uint64_t version() const { return version_; }
  std::size_t num_variables() const { return first_.size() - 1; }
  // The parts of all variables, one variable after the other.
  std::span<const rpc::Slice> parts() const { return slices_; }
  // The parts of one variable.
  std::span<const rpc::Slice> of(std::size_t variable) const {
    return parts().subspan(first_part(variable), first_.at(variable + 1) - first_part(variable));
  }
  std::size_t first_part(std::size_t variable) const { return first_.at(variable); }

 private:
  std::uint64_t version_;
  std::vector<rpc::Slice> slices_;
  std::vector<std::size_t> first_{0};
};

// Thread-safe.
class COHORT_API PlacementTable {
 public:
  // Adds the variables; those of a later version replace all that are here. Ignores an earlier one.
  // Throws invalid_argument, and takes nothing, if the slices of a variable are not all of its rows
  // in order.
  void take(const rpc::Placement& placement);
  // The result of find() is valid as long as this is its version.
  std::uint64_t version() const { return version_; }
  // In the order of the variables. Throws not_found, with handle_lost, for one that is not here.
  Places find(std::span<const std::uint64_t> variables) const;
  // The same as a message.
  rpc::Placement message(std::span<const std::uint64_t> variables) const;
  // Forgets these variables. Returns the slices that they had.
  std::vector<rpc::Slice> erase(std::span<const std::uint64_t> variables);

 private:
  mutable std::shared_mutex mutex_;
  std::atomic<std::uint64_t> version_ = 0;
  std::unordered_map<std::uint64_t, std::vector<rpc::Slice>> slices_;
};

}  // namespace cohort::parameter_server
