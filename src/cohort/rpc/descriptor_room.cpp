// SPDX-License-Identifier: Apache-2.0
#include "cohort/rpc/descriptor_room.h"

#include <fcntl.h>
#include <sys/resource.h>

#include <cerrno>
#include <filesystem>
#include <system_error>
#include <vector>

#include "cohort/core/error.h"
#include "cohort/core/file_descriptor.h"
#include "cohort/core/system_error.h"

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

std::size_t free_descriptors() noexcept {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return 0;
  std::error_code error;
  std::size_t open = 0;
  for (std::filesystem::directory_iterator entry("/proc/self/fd", error), end; entry != end;
       entry.increment(error))
    ++open;
  return limit.rlim_cur > open ? static_cast<std::size_t>(limit.rlim_cur) - open : 0;
}

}  // namespace cohort::rpc
