// SPDX-License-Identifier: Apache-2.0
#include "cohort/rpc/sockets/hand_over.h"

#include <utility>

#include "cohort/core/error.h"
#include "cohort/core/log.h"
#include "cohort/rpc/frames/channel_end.h"

namespace cohort::rpc::internal {

HandOver::~HandOver() {
  close();
  wait();
}

void HandOver::add(FileDescriptor socket) {
  {
    const Lock lock(mutex_);
    if (is_closed_) return;
    waiting_.push_back(std::move(socket));
    if (threads_ == kThreadsMax) return;
    ++threads_;
  }
  try {
    start_thread([this] { run(); }).detach();
  } catch (...) {
    const Lock lock(mutex_);
    if (--threads_ > 0) return;  // another thread takes it
    waiting_.clear();
    changed_.notify_all();
    throw;
  }
}

void HandOver::close() noexcept {
  const Lock lock(mutex_);
  is_closed_ = true;
  waiting_.clear();
}

void HandOver::wait() noexcept {
  const Lock lock(mutex_);
  changed_.wait(mutex_, Deadline(), [this]() COHORT_REQUIRES(mutex_) { return threads_ == 0; });
}

void HandOver::run() noexcept {
  for (FileDescriptor socket = next(); socket.is_open(); socket = next()) {
    try {
      take_(std::move(socket));
    } catch (...) {
      log_error("a connection was dropped: ", current_error().what());
    }
  }
}

FileDescriptor HandOver::next() {
  const Lock lock(mutex_);
  if (waiting_.empty()) {
    --threads_;
    changed_.notify_all();
    return FileDescriptor();
  }
  FileDescriptor first = std::move(waiting_.front());
  waiting_.pop_front();
  return first;
}

}  // namespace cohort::rpc::internal
