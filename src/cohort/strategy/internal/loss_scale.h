// SPDX-License-Identifier: Apache-2.0
// Whether a replica has scaled its loss, for warnings.
#pragma once

namespace cohort {
class ReplicaContext;
}

namespace cohort::internal {

// Whether average_loss() or scale_regularization_loss() was called in the current run of this
// replica, on whose thread this is called.
bool has_scaled_loss(const ReplicaContext& replica);

}  // namespace cohort::internal
