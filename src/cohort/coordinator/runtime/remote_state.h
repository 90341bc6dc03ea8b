// SPDX-License-Identifier: Apache-2.0
// The state that a RemoteValue and the coordinator share.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string_view>

#include "cohort/core/error.h"
#include "cohort/core/mutex.h"
#include "cohort/core/nest.h"

namespace cohort::coordinator {

class Runtime;

// Set once. Thread-safe.
class RemoteState final : public Handle {
 public:
  explicit RemoteState(std::weak_ptr<Runtime> runtime) : runtime_(std::move(runtime)) {}
  std::string_view handle_kind() const override { return "remote value"; }

  void set(Nest value);
  void fail(const Error& error);
  bool is_ready() const;
  // Returns the value or throws the error. Call it only if it is ready.
  Nest get() const;
  std::shared_ptr<Runtime> runtime() const { return runtime_.lock(); }

 private:
  const std::weak_ptr<Runtime> runtime_;
  mutable Mutex mutex_;
  std::atomic<bool> is_ready_{false};  // set after the others
  Nest value_ COHORT_GUARDED_BY(mutex_);
  std::optional<Error> error_ COHORT_GUARDED_BY(mutex_);
};

}  // namespace cohort::coordinator
