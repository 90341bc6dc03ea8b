// SPDX-License-Identifier: Apache-2.0
// Settings of LibTorch that change which operators a thread runs: gradients, autocast's casts, the
// default type of numbers. A trace records these operators too, so a program belongs to the mode in
// which it was traced.
#pragma once

#include <c10/core/InferenceMode.h>
#include <c10/core/ScalarType.h>

#include <optional>

#include "cohort/core/export.h"

namespace cohort::function {

// The autocast settings are those of the CPU, where programs run.
struct COHORT_API TracingMode {
  bool is_grad_enabled = true;
  bool is_inference = false;
  bool is_autocast_enabled = false;
  bool is_autocast_cached = true;
  c10::ScalarType autocast_dtype = c10::ScalarType::BFloat16;
  // torch::set_default_dtype(): of the process, not of the thread.
  c10::ScalarType default_dtype = c10::ScalarType::Float;

  // The mode of this thread.
  static TracingMode current();
  bool operator==(const TracingMode&) const = default;
};

// Sets the mode of this thread while the object exists. The destructor restores the mode from
// before, even if other code has changed it in between.
class COHORT_API TracingModeScope {
 public:
  explicit TracingModeScope(const TracingMode& mode);
  ~TracingModeScope();
  TracingModeScope(const TracingModeScope&) = delete;
  TracingModeScope& operator=(const TracingModeScope&) = delete;

 private:
  const TracingMode before_;
  std::optional<c10::InferenceMode> inference_;  // only where that changes
};

}  // namespace cohort::function
