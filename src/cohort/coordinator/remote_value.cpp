// SPDX-License-Identifier: Apache-2.0
#include "cohort/coordinator/cluster_coordinator.h"

#include "cohort/coordinator/functions/scheduled_arguments.h"
#include "cohort/coordinator/runtime/remote_state.h"
#include "cohort/coordinator/runtime/runtime.h"

namespace cohort {
namespace coordinator {

void RemoteState::set(Nest value) {
  const Lock lock(mutex_);
  if (is_ready_) return;
  value_ = std::move(value);
  is_ready_.store(true, std::memory_order_release);
}

void RemoteState::fail(const Error& error) {
  const Lock lock(mutex_);
  if (is_ready_) return;
  error_ = error;
  is_ready_.store(true, std::memory_order_release);
}

bool RemoteState::is_ready() const { return is_ready_.load(std::memory_order_acquire); }

Nest RemoteState::get() const {
  const Lock lock(mutex_);
  COHORT_ASSERT(is_ready_);
  if (error_) throw *error_;
  return value_;
}

}  // namespace coordinator

RemoteValue::operator Nest() const { return Nest(std::shared_ptr<Handle>(state_)); }

Nest RemoteValue::fetch() const { return fetch(Deadline()); }

Nest RemoteValue::fetch(Deadline deadline) const {
  coordinator::check_outside_step("fetch");
  if (!state_->is_ready()) {
    // A coordinator ends all closures before it is destroyed, so only an existing one needs a wait.
    if (const std::shared_ptr<coordinator::Runtime> runtime = state_->runtime()) {
      runtime->wait_for(*state_, deadline);
    }
  }
  return state_->get();
}

bool RemoteValue::is_ready() const { return state_->is_ready(); }

}  // namespace cohort
