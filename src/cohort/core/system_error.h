// SPDX-License-Identifier: Apache-2.0
// What the system says about a call that failed (errno).
#pragma once

#include <string>

#include "cohort/core/error.h"
#include "cohort/core/export.h"

namespace cohort {

// The system's text, and the remedy for the limits that a user can raise: "Too many open files;
// raise this process's limit of open files (ulimit -n)".
COHORT_API std::string text_of_errno(int number);
// resource_exhausted for what the process or the system has too little of (EMFILE, ENFILE, ENOMEM,
// ENOBUFS, ENOSPC, EDQUOT, and EAGAIN, which fork() says), otherwise `other`.
COHORT_API ErrorCode code_of_errno(int number, ErrorCode other);
// EMFILE or ENFILE when this process cannot open one more file descriptor, otherwise 0. Libraries
// that hide errno are asked about so, after one of their calls has failed.
COHORT_API int lacks_descriptors() noexcept;

}  // namespace cohort
