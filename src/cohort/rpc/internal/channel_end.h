// SPDX-License-Identifier: Apache-2.0
// What the ends of all backends share: the handlers' rules, the first reason to close, names for
// messages.
#pragma once

#include <atomic>
#include <functional>
#include <optional>
#include <string>
#include <thread>

#include "cohort/core/mutex.h"
#include "cohort/rpc/channel.h"

namespace cohort::rpc::internal {

// Who is at the other end.
struct PeerName {
  std::string task;  // "worker:1"; empty for an accepted connection
  std::string address;
  std::string_view backend;

  // "worker:1 (127.0.0.1:4711, stream)".
  std::string to_string() const;
};

// unavailable, peer_lost, from the task.
Error lost_error(const PeerName& peer, const std::string& what);
Error refused_error(const PeerName& peer, const std::string& what);
Error expired_error(const PeerName& peer);
// What reading from the peer threw, with its name and as a lost peer. Counts it in broken_frames()
// where it says data_loss. Logs it for a peer with a name; of an accepted connection, whoever has
// accepted it does.
Error reading_failed(const PeerName& peer, const Error& error);

// One end's handlers and state. deliver() and finish() are used only from the channel's thread; the
// rest is thread-safe.
class ChannelEnd {
 public:
  explicit ChannelEnd(PeerName peer) : name_(std::move(peer)), text_(name_.to_string()) {}

  const PeerName& name() const { return name_; }
  const std::string& text() const { return text_; }
  void set_handlers(Channel::Handlers handlers) { handlers_ = std::move(handlers); }

  // Hands a frame to its handler, unless closed. What the handler throws becomes the reason to
  // close.
  void deliver(Frame frame);
  // Reports the end to its handler and lets go of both.
  void finish();

  // The first reason stands; false for a later one.
  bool set_closed(Error reason);
  bool is_closed() const { return is_closed_.load(std::memory_order_acquire); }
  // The reason given, by a peer or by close() here.
  Error reason() const;
  Error cancelled() const;
  // unavailable when closed.
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

// A thread with all signals blocked: they are for the program's own threads. resource_exhausted
// where the system gives none.
std::thread start_thread(std::function<void()> body);

// The thread of a channel. Where the system gives none, the handlers hear of the channel's end, as
// whoever has accepted it may keep it until then.
std::thread start_channel_thread(ChannelEnd& end, Channel::Handlers handlers,
                                 std::function<void()> body);

// The channels a listener made, to close with it. Thread-safe.
class AcceptedChannels {
 public:
  // Closes it at once when the others were closed.
  void add(const std::shared_ptr<Channel>& channel);
  void close_all() noexcept;

 private:
  Mutex mutex_;
  std::vector<std::weak_ptr<Channel>> channels_ COHORT_GUARDED_BY(mutex_);
  bool is_closed_ COHORT_GUARDED_BY(mutex_) = false;
};

// The handlers that `accept` gives for the channel; when it throws nothing, a line in the log, and
// the channel is closed.
std::optional<Channel::Handlers> ask_acceptor(const AcceptHandler& accept,
                                              const std::shared_ptr<Channel>& channel);

}  // namespace cohort::rpc::internal
