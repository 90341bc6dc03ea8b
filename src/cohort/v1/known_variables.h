// SPDX-License-Identifier: Apache-2.0
// The variables of a job that this task uses, and where they are.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cohort/core/export.h"
#include "cohort/core/mutex.h"
#include "cohort/rpc/messages.h"
#include "cohort/v1/server_home.h"
#include "cohort/variable/variable.h"

namespace cohort::detail::v1 {

struct KnownVariable {
  rpc::SharedVariable entry;
  Variable remote;
  at::Tensor initial = {};  // in the chief that has made it
};

// Thread-safe.
class COHORT_API KnownVariables {
 public:
  explicit KnownVariables(std::shared_ptr<ServerHome> home) : home_(std::move(home)) {}

  // Replaces one of this name, which may be elsewhere now. `initial`: undefined keeps that of the
  // one that it replaces.
  void put(const rpc::SharedVariable& entry, const at::Tensor& initial = {});
  void forget(const std::string& name);
  std::optional<rpc::SharedVariable> find(const std::string& name) const;
  // Throws failed_precondition for a variable that is not here.
  Variable remote_of(const Variable& variable) const;
  // In the order in which they came.
  std::vector<KnownVariable> all() const;
  // The largest number that one of them or of their slices has.
  std::uint64_t last_id() const;

 private:
  const std::shared_ptr<ServerHome> home_;
  mutable Mutex mutex_;
  std::map<std::string, std::size_t> by_name_ COHORT_GUARDED_BY(mutex_);
  std::vector<KnownVariable> known_ COHORT_GUARDED_BY(mutex_);
};

}  // namespace cohort::detail::v1
