// SPDX-License-Identifier: Apache-2.0
#include <ATen/core/TensorBody.h>

#include <utility>

#include "cohort/strategy/strategy_access.h"
#include "cohort/strategy/synchronous_strategy.h"

namespace cohort {
namespace {

thread_local SyncOnReadScope* innermost_scope = nullptr;

}  // namespace

SyncOnReadScope::SyncOnReadScope() : outer_(std::exchange(innermost_scope, this)) {
  if (const ReplicaContext* const replica = get_replica_context()) replica_ = *replica;
}

SyncOnReadScope::~SyncOnReadScope() { innermost_scope = outer_; }

const at::Tensor& SyncOnReadScope::kept(const VariableImpl& variable, at::Tensor value) {
  return innermost_scope->values_.insert_or_assign(&variable, std::move(value)).first->second;
}

// A run's first replica is on its caller's thread, the others are not: what the caller has opened
// concerns none of them.
bool SyncOnReadScope::is_here() {
  if (innermost_scope == nullptr) return false;
  const ReplicaContext* const replica = get_replica_context();
  const std::optional<ReplicaContext>& made_in = innermost_scope->replica_;
  if (replica == nullptr || !made_in) return replica == nullptr && !made_in;
  return internal::StrategyAccess::is_same(*replica, *made_in);
}

}  // namespace cohort
