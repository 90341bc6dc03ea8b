// SPDX-License-Identifier: Apache-2.0
// Keeps the memory that a step frees for the next step.
#pragma once

namespace cohort {

// Makes malloc keep up to 256 MiB of freed memory, and allocate tensors of up to 64 MiB from it.
// Each step frees and allocates the same large tensors, and mapping new pages for them would take
// as long as computing them. This is for the whole process. It does nothing if the environment sets
// malloc's thresholds, or if the C library is not glibc.
void keep_freed_memory();

}  // namespace cohort
