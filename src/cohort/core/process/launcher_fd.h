// SPDX-License-Identifier: Apache-2.0
// The pipes by which `cohort launch` hears from the programs that it starts.
#pragma once

namespace cohort {

// The descriptor that this environment variable names, or -1: other text than a number must not
// become descriptor 0.
int launcher_fd(const char* variable);

}  // namespace cohort
