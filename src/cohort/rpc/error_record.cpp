// SPDX-License-Identifier: Apache-2.0
#include "cohort/rpc/error_record.h"

namespace cohort::rpc {

void ErrorRecord::note(const Error& error) {
  const TimePoint now = Clock::system().now();
  const Lock lock(mutex_);
  error_ = error;
  noted_at_ = now;
}

std::optional<TaskError> ErrorRecord::get() const {
  const Lock lock(mutex_);
  if (!error_) return std::nullopt;
  return TaskError{.code = error_->code(),
                   .cause = error_->cause(),
                   .age = Clock::system().now() - noted_at_,
                   .origin = error_->origin(),
                   .text = error_->message()};
}

}  // namespace cohort::rpc
