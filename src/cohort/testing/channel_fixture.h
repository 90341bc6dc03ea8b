// SPDX-License-Identifier: Apache-2.0
// Fixtures of channel tests: two ends of a channel, and recorders of what they receive.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "cohort/core/mutex.h"
#include "cohort/rpc/any_listener_for_tests.h"
#include "cohort/rpc/channel.h"

namespace cohort::testing {

// Long enough that it expires only if something hangs.
inline Deadline patience() { return Deadline::after(std::chrono::seconds(60)); }

// Handlers that only record frames and errors. Thread-safe.
class Recorder {
 public:
  rpc::Channel::Handlers handlers() {
    return {.on_frame = [this](rpc::Frame frame) { add(std::move(frame)); },
            .on_closed = [this](const Error& reason) { add_closed(reason); }};
  }

  void add(rpc::Frame frame) {
    Lock lock(mutex_);
    if (!closed_.empty()) ADD_FAILURE() << "a frame after on_closed";
    frames_.push_back(std::move(frame));
    changed_.notify_all();
  }
  void add_closed(const Error& reason) {
    Lock lock(mutex_);
    closed_.push_back(reason);
    changed_.notify_all();
  }

  // Waits for `count` frames, and returns all frames received so far.
  std::vector<rpc::Frame> wait_frames(std::size_t count) {
    Lock lock(mutex_);
    const bool is_there = changed_.wait(
        mutex_, patience(), [&]() COHORT_REQUIRES(mutex_) { return frames_.size() >= count; });
    EXPECT_TRUE(is_there) << "got " << frames_.size() << " frames of " << count;
    return frames_;
  }
  Error wait_closed() {
    Lock lock(mutex_);
    const bool is_there = changed_.wait(mutex_, patience(),
                                        [&]() COHORT_REQUIRES(mutex_) { return !closed_.empty(); });
    EXPECT_TRUE(is_there) << "on_closed never came";
    return is_there ? closed_.front() : Error(ErrorCode::unknown, "never closed");
  }
  std::size_t closed_count() {
    Lock lock(mutex_);
    return closed_.size();
  }

 private:
  Mutex mutex_;
  Condition changed_;
  std::vector<rpc::Frame> frames_ COHORT_GUARDED_BY(mutex_);
  std::vector<Error> closed_ COHORT_GUARDED_BY(mutex_);
};

// A value that one thread sets and another waits for. Thread-safe.
template <class Value>
class Promised {
 public:
  void set(Value value) {
    Lock lock(mutex_);
    value_ = std::move(value);
    is_set_ = true;
    changed_.notify_all();
  }
  bool is_set() {
    Lock lock(mutex_);
    return is_set_;
  }
  Value wait() {
    Lock lock(mutex_);
    EXPECT_TRUE(changed_.wait(mutex_, patience(), [&]() COHORT_REQUIRES(mutex_) {
      return is_set_;
    })) << "never set";
    return value_;
  }
  // Waits for the value and removes it, so that the next call waits for the next value.
  Value take() {
    Value value = wait();
    Lock lock(mutex_);
    is_set_ = false;
    value_ = Value();
    return value;
  }

 private:
  Mutex mutex_;
  Condition changed_;
  Value value_ COHORT_GUARDED_BY(mutex_){};
  bool is_set_ COHORT_GUARDED_BY(mutex_) = false;
};

// A listener and one connection to it. Members are destroyed in reverse order, so the channels are
// destroyed before the objects that their handlers use.
struct ChannelPair {
  using MakeHandlers = std::function<rpc::Channel::Handlers(std::shared_ptr<rpc::Channel>)>;

  // Handlers of the ends default to the recorders.
  explicit ChannelPair(std::string_view backend_name, rpc::Channel::Handlers near_handlers = {},
                       MakeHandlers far_handlers = {},
                       std::size_t frame_bytes_max = rpc::kFrameBytesMax)
      : backend(rpc::backend_of(backend_name)) {
    if (!near_handlers.on_frame) near_handlers.on_frame = at_near.handlers().on_frame;
    if (!near_handlers.on_closed) near_handlers.on_closed = at_near.handlers().on_closed;
    listener = listen_on(
        backend_name, any_address(backend_name),
        [this, far_handlers](std::shared_ptr<rpc::Channel> channel) {
          Recorder& recorder = is_first.exchange(false) ? at_far : at_others;
          auto handlers = far_handlers ? far_handlers(channel) : recorder.handlers();
          accepted.set(channel);
          return handlers;
        },
        frame_bytes_max);
    near = backend.connect(
        {.address = listener->address(), .peer = "worker:1", .deadline = patience()},
        std::move(near_handlers));
    far = accepted.take();
  }

  const rpc::Backend& backend;
  Recorder at_near;
  Recorder at_far;
  Recorder at_others;  // for further connections
  std::atomic<bool> is_first = true;
  Promised<std::shared_ptr<rpc::Channel>> accepted;
  std::unique_ptr<rpc::Listener> listener;
  std::shared_ptr<rpc::Channel> far;   // accepted
  std::shared_ptr<rpc::Channel> near;  // connected
};

}  // namespace cohort::testing
