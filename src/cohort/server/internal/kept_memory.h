// SPDX-License-Identifier: Apache-2.0
// Memory that a step frees and the next one wants again.
#pragma once

namespace cohort::server {

// Has malloc keep what is freed, up to 256 MiB, and take tensors of up to 64 MiB from it: a step
// frees and allocates the same large tensors again and again, and mapping fresh pages for them
// takes as long as computing them. Of the whole process; where the environment sets malloc's
// thresholds, or the C library is not glibc, nothing changes.
void keep_freed_memory();

}  // namespace cohort::server
