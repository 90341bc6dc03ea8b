// SPDX-License-Identifier: Apache-2.0
// What LibTorch adds to the operators that are called on a thread: gradients, autocast's casts, the
// default type of numbers.
// A trace writes it down with them, so a program belongs to the mode it was traced in.
#pragma once

#include <c10/core/InferenceMode.h>
#include <c10/core/ScalarType.h>

#include <optional>

#include "cohort/core/export.h"

namespace cohort::function {

// Of the CPU, where programs run.
struct COHORT_API TracingMode {
  bool is_grad_enabled = true;
  bool is_inference = false;
  bool is_autocast_enabled = false;
  bool is_autocast_cached = true;
  c10::ScalarType autocast_dtype = c10::ScalarType::BFloat16;
  // torch::set_default_dtype(): of the process, not of the thread.
  c10::ScalarType default_dtype = c10::ScalarType::Float;

  // That of this thread.
  static TracingMode current();
  bool operator==(const TracingMode&) const = default;
};

// This thread is in `mode` while it stands, and then in its own again, whatever has become of it.
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
