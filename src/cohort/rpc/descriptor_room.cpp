// SPDX-License-Identifier: Apache-2.0
#include "cohort/rpc/detail/descriptor_room.h"

#include <fcntl.h>

#include <cerrno>
#include <vector>

#include "cohort/core/detail/file_descriptor.h"
#include "cohort/core/detail/system_error.h"
#include "cohort/core/error.h"

namespace cohort::rpc {

void check_descriptor_room(std::size_t count) {
  std::vector<FileDescriptor> opened;
  opened.reserve(count);
  while (opened.size() < count) {
    FileDescriptor fd(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    COHORT_CHECK(fd.is_open(), ErrorCode::resource_exhausted,
                 "[rpc.descriptors] expected room for ", count,
                 " more open files and connections of gRPC and this task, got ", opened.size(),
                 ": ", text_of_errno(errno));
    opened.push_back(std::move(fd));
  }
}

}  // namespace cohort::rpc
