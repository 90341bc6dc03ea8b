// SPDX-License-Identifier: Apache-2.0
#include "cohort/rpc/process_room.h"

#include <fcntl.h>
#include <sys/resource.h>

#include <cerrno>
#include <filesystem>
#include <future>
#include <string>
#include <system_error>
#include <vector>

#include "cohort/core/error.h"
#include "cohort/core/file_descriptor.h"
#include "cohort/core/system_error.h"
#include "cohort/rpc/frames/channel_end.h"

namespace cohort::rpc {

void check_thread_room(std::size_t count) {
  internal::check_thread_room(count, &internal::start_thread);
}

void internal::check_thread_room(std::size_t count, const StartThread& start) {
  std::promise<void> may_end;
  std::vector<std::thread> threads;
  threads.reserve(count);
  std::string problem;
  try {
    const std::shared_future<void> end = may_end.get_future().share();
    while (threads.size() < count) threads.push_back(start([end] { end.wait(); }));
  } catch (...) {
    problem = current_error().message();
  }
  may_end.set_value();
  for (std::thread& thread : threads) thread.join();
  COHORT_CHECK(problem.empty(), ErrorCode::resource_exhausted, "[rpc.threads] expected room for ",
               count, " threads of LibTorch, gRPC and this task, got ", threads.size(), ": ",
               problem);
}

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
