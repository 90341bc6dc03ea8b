// SPDX-License-Identifier: Apache-2.0
#include "cohort/checkpoint/background_write.h"

#include <unistd.h>

#include <memory>
#include <utility>

#include "cohort/core/start_thread.h"

namespace cohort::checkpoint {

BackgroundWrite::BackgroundWrite(std::uint64_t bytes_max)
    : bytes_max_(bytes_max), process_(::getpid()) {
  thread_ = start_thread_without_signals("to write a checkpoint", [this] { run(); });
}

BackgroundWrite::~BackgroundWrite() {
  if (process_ != ::getpid()) {
    // The tasks would remove the files that the parent writes, so they are never destroyed here.
    thread_.detach();
    [[maybe_unused]] auto* const left = new std::deque<Task>(std::move(tasks_));
    return;
  }
  close();
  thread_.join();
}

void BackgroundWrite::reserve(std::uint64_t bytes) {
  const Lock lock(mutex_);
  const auto has_room = [&]() COHORT_NO_THREAD_SAFETY_ANALYSIS {
    return error_ || bytes_ == 0 || (bytes <= bytes_max_ && bytes_ <= bytes_max_ - bytes);
  };
  changed_.wait(mutex_, Deadline(), has_room);  // as writing without a thread waits for the disk
  if (error_) throw Error(*error_);
  bytes_ += bytes;
}

void BackgroundWrite::add(std::uint64_t bytes, std::function<void()> task) {
  const Lock lock(mutex_);
  tasks_.push_back({bytes, std::move(task)});
  if (error_) drop_tasks();
  changed_.notify_all();
}

void BackgroundWrite::close() {
  const Lock lock(mutex_);
  is_closed_ = true;
  changed_.notify_all();
}

void BackgroundWrite::cancel() {
  const Lock lock(mutex_);
  drop_tasks();
}

void BackgroundWrite::drop_tasks() {
  for (const Task& task : tasks_) bytes_ -= task.bytes;
  tasks_.clear();
  changed_.notify_all();
}

bool BackgroundWrite::is_done_now() const {
  return !is_running_ && (error_ || (is_closed_ && tasks_.empty()));
}

bool BackgroundWrite::is_done() const {
  const Lock lock(mutex_);
  return is_done_now();
}

bool BackgroundWrite::wait(Deadline deadline) const {
  const Lock lock(mutex_);
  return changed_.wait(mutex_, deadline,
                       [&]() COHORT_NO_THREAD_SAFETY_ANALYSIS { return is_done_now(); });
}

std::optional<Error> BackgroundWrite::error() const {
  const Lock lock(mutex_);
  return error_;
}

void BackgroundWrite::run() {
  while (true) {
    Task task;
    {
      const Lock lock(mutex_);
      changed_.wait(mutex_, Deadline(), [&]() COHORT_NO_THREAD_SAFETY_ANALYSIS {
        return is_closed_ || !tasks_.empty();
      });
      if (tasks_.empty()) return;
      task = std::move(tasks_.front());
      tasks_.pop_front();
      is_running_ = true;
    }
    std::optional<Error> error;
    try {
      task.run();
    } catch (...) {
      error = current_error();
    }
    const std::uint64_t bytes = task.bytes;
    task = Task();  // frees its memory before another task gets it
    const Lock lock(mutex_);
    bytes_ -= bytes;
    is_running_ = false;
    if (error && !error_) error_ = std::move(error);
    if (error_) drop_tasks();
    changed_.notify_all();
  }
}

}  // namespace cohort::checkpoint
