// SPDX-License-Identifier: Apache-2.0
#include "cohort/rpc/thread_room.h"

#include <future>
#include <string>
#include <vector>

#include "cohort/core/error.h"
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

}  // namespace cohort::rpc
