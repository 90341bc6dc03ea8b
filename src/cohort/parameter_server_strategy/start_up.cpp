// SPDX-License-Identifier: Apache-2.0
#include "cohort/parameter_server_strategy/start_up.h"

#include "cohort/core/log.h"
#include "cohort/core/start_thread.h"

namespace cohort::internal {
namespace {

constexpr Duration kFirstWord = std::chrono::seconds(3);
constexpr Duration kNextWord = std::chrono::seconds(10);

}  // namespace

void ConnectingThreads::start(std::function<void()> body) {
  try {
    threads_.push_back(start_thread("for each task to connect to", std::move(body)));
  } catch (...) {
    should_stop_ = true;
    join();
    throw;
  }
}

void ConnectingThreads::join() {
  for (std::thread& thread : threads_) {
    if (thread.joinable()) thread.join();
  }
}

void Awaited::has_come(const std::string& name) {
  const Lock lock(mutex_);
  names_.erase(name);
  changed_.notify_all();
}

void Awaited::wait() {
  const Lock lock(mutex_);
  for (Duration pause = kFirstWord; !is_over(pause); pause = kNextWord) {
    std::string text;
    for (const std::string& name : names_) text += (text.empty() ? "" : ", ") + name;
    log_warn("waiting for ", text);
  }
}

bool Awaited::is_over(Duration pause) {
  return changed_.wait(mutex_, Deadline::after(pause),
                       [this]() COHORT_REQUIRES(mutex_) { return names_.empty(); });
}

void FirstTask::end(State state) {
  const Lock lock(mutex_);
  state_ = state;
  changed_.notify_all();
}

FirstTask::State FirstTask::wait(Deadline deadline) {
  const Lock lock(mutex_);
  changed_.wait(mutex_, deadline,
                [this]() COHORT_REQUIRES(mutex_) { return state_ != State::awaited; });
  return state_;
}

}  // namespace cohort::internal
