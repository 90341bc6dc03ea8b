// SPDX-License-Identifier: Apache-2.0
// Errors of system calls (errno).
#pragma once

#include <string>

#include "cohort/core/error.h"
#include "cohort/core/export.h"

namespace cohort {

// The system's text, and the remedy for the limits that a user can raise: "Too many open files;
// raise this process's limit of open files (ulimit -n)".
COHORT_API std::string text_of_errno(int number);
// resource_exhausted where the process or the system lacks a resource (EMFILE, ENFILE, ENOMEM,
// ENOBUFS, ENOSPC, EDQUOT, EFBIG, and EAGAIN, which fork() sets), otherwise `other`.
COHORT_API ErrorCode code_of_errno(int number, ErrorCode other);
// The same for opening, reading and writing files: also not_found and permission_denied, otherwise
// failed_precondition.
COHORT_API ErrorCode code_of_file_errno(int number);
// EMFILE or ENFILE when this process cannot open one more file descriptor, otherwise 0. Call it
// after a failed call of a library that hides errno.
COHORT_API int lacks_descriptors() noexcept;

}  // namespace cohort
