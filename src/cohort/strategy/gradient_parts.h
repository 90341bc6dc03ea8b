// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace cohort::internal {

// Whether this thread is in the loss of a part (gradients_in_parts()).
bool is_in_gradient_part();

}  // namespace cohort::internal
