// SPDX-License-Identifier: Apache-2.0
// A number that steps read and the program around them may change, as a 0-dim float64 tensor.
//
//   at::Tensor rate = make_hyperparameter(0.1);   // captured by a trace, read at every call
//   set_hyperparameter(rate, 0.05);               // from any thread, while others schedule
//
// Its memory is read and written atomically by these functions; a message needs a snapshot, since
// the tensor itself may have changed by the time the message is sent.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "cohort/core/export.h"

namespace cohort {

COHORT_API at::Tensor make_hyperparameter(double value);
COHORT_API void set_hyperparameter(const at::Tensor& hyperparameter, double value);
// The value of any 0-dim tensor; invalid_argument for another shape.
COHORT_API double hyperparameter_value(const at::Tensor& hyperparameter);
// A copy that no longer changes. A tensor that is no hyperparameter is copied as it is.
COHORT_API at::Tensor hyperparameter_snapshot(const at::Tensor& value);

// How often hyperparameters of this process have changed. Who notes it can ask later for a value of
// that time.
COHORT_API std::uint64_t hyperparameter_time() noexcept;
// As above, with the value that it had at `time`. Undefined when that is no longer known: each one
// remembers its last 4096 changes.
COHORT_API at::Tensor hyperparameter_snapshot(const at::Tensor& value, std::uint64_t time);

}  // namespace cohort
