// SPDX-License-Identifier: Apache-2.0
#include "cohort/core/system_error.h"

#include <fcntl.h>

#include <cerrno>
#include <system_error>

#include "cohort/core/file_descriptor.h"

namespace cohort {

std::string text_of_errno(int number) {
  const std::string text = std::generic_category().message(number);
  if (number == EMFILE) return text + "; raise this process's limit of open files (ulimit -n)";
  if (number == ENFILE) return text + "; raise this system's limit of open files (fs.file-max)";
  if (number == EFBIG) return text + "; raise this process's limit of file sizes (ulimit -f)";
  return text;
}

ErrorCode code_of_errno(int number, ErrorCode other) {
  switch (number) {
    case EMFILE:
    case ENFILE:
    case ENOMEM:
    case ENOBUFS:
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
    case EAGAIN:
      return ErrorCode::resource_exhausted;
    default:
      return other;
  }
}

ErrorCode code_of_file_errno(int number) {
  switch (number) {
    case ENOENT:
    case ENOTDIR:
      return ErrorCode::not_found;
    case EACCES:
    case EROFS:
      return ErrorCode::permission_denied;
    default:
      return code_of_errno(number, ErrorCode::failed_precondition);
  }
}

int lacks_descriptors() noexcept {
  const FileDescriptor fd(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  return !fd.is_open() && (errno == EMFILE || errno == ENFILE) ? errno : 0;
}

}  // namespace cohort
