// SPDX-License-Identifier: Apache-2.0
// The common part of the ends of all backends: the rules for handlers, the first reason to close,
// and names for messages.
#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "cohort/core/mutex.h"
#include "cohort/rpc/channel.h"

namespace cohort::rpc::internal {

// The peer's names, for messages.
struct PeerName {
  std::string task;  // "worker:1"; empty for an accepted connection
  std::string address;
  std::string_view backend;

  // "worker:1 (127.0.0.1:4711, stream)".
  std::string to_string() const;
};

// The task is the origin of each. The first two are unavailable (peer_lost), the third
// deadline_exceeded.
Error lost_error(const PeerName& peer, const std::string& what);
Error refused_error(const PeerName& peer, const std::string& what);
Error expired_error(const PeerName& peer);
// An error from reading, with the peer's name and peer_lost added. Counts a data_loss in
// broken_frames(). Logs the error if the peer has a task name; for an accepted connection the
// accepting code does.
Error reading_failed(const PeerName& peer, const Error& error);

// Returns the error that the sender of a broken frame gets, in a farewell, before the connection is
// closed. It is unavailable (peer_lost), since the sender only loses the connection.
Error broken_frame_farewell(const Error& error);

// One end's handlers and state. deliver() and finish() are used only from the channel's thread; the
// rest is thread-safe.
class ChannelEnd {
 public:
  explicit ChannelEnd(PeerName peer) : name_(std::move(peer)), text_(name_.to_string()) {}

  const PeerName& name() const { return name_; }
  const std::string& text() const { return text_; }
  void set_handlers(Channel::Handlers handlers) { handlers_ = std::move(handlers); }

  // Passes a frame to its handler, unless closed. An exception of the handler becomes the reason to
  // close.
  void deliver(Frame frame);
  // Calls on_closed and releases both handlers.
  void finish();

  // Keeps the first reason; returns false for a later one.
  bool set_closed(Error reason);
  bool is_closed() const { return is_closed_.load(std::memory_order_acquire); }
  // The reason set by the peer or by close() here.
  Error reason() const;
  Error cancelled() const;
  // Throws unavailable if the channel is closed.
  void check_open() const;

  // Between these, is_own_thread() is true for the caller's thread.
  void enter_thread() { thread_.store(std::this_thread::get_id(), std::memory_order_release); }
  bool is_own_thread() const {
    return thread_.load(std::memory_order_acquire) == std::this_thread::get_id();
  }

 private:
  const PeerName name_;
  const std::string text_;
  Channel::Handlers handlers_;
  std::atomic<std::thread::id> thread_{};
  std::atomic<bool> is_closed_{false};
  mutable Mutex mutex_;
  std::optional<Error> reason_ COHORT_GUARDED_BY(mutex_);
};

// Starts a thread with all signals blocked, since signals are for the program's own threads. Throws
// resource_exhausted if the system cannot start one.
std::thread start_thread(std::function<void()> body);

// The channels that a listener accepted, to close them with it. Thread-safe.
class AcceptedChannels {
 public:
  ~AcceptedChannels() { close_all(); }

  // Each takes a thread, so one more closes the oldest stranger.
  static constexpr std::size_t kStrangersMax = 32;

  // `is_stranger`: whether the peer has not completed its hello; empty for one that needs none.
  // Closes the channel at once if close_all() ran before.
  void add(const std::shared_ptr<Channel>& channel, std::function<bool()> is_stranger = nullptr);
  void close_all() noexcept;

 private:
  struct Accepted {
    std::weak_ptr<Channel> channel;
    std::function<bool()> is_stranger;
  };

  // Null if there are not too many.
  std::shared_ptr<Channel> oldest_stranger_too_many() COHORT_REQUIRES(mutex_);

  Mutex mutex_;
  std::vector<Accepted> channels_ COHORT_GUARDED_BY(mutex_);
  bool is_closed_ COHORT_GUARDED_BY(mutex_) = false;
};

// Calls `accept` and returns the handlers for the channel. If it throws: logs, closes the channel
// and returns nullopt.
std::optional<Channel::Handlers> ask_acceptor(const AcceptHandler& accept,
                                              const std::shared_ptr<Channel>& channel);

}  // namespace cohort::rpc::internal
