// SPDX-License-Identifier: Apache-2.0
#include "cohort/rpc/frames/channel_end.h"

#include <utility>

#include "cohort/core/log.h"
#include "cohort/core/start_thread.h"

namespace cohort::rpc::internal {
namespace {

std::atomic<std::uint64_t> broken_count{0};

}  // namespace

std::string PeerName::to_string() const {
  if (task.empty()) return address + " (" + std::string(backend) + ")";
  return task + " (" + address + ", " + std::string(backend) + ")";
}

Error lost_error(const PeerName& peer, const std::string& what) {
  return Error(ErrorCode::unavailable, "[rpc.channel] lost " + peer.to_string() + ": " + what,
               ErrorCause::peer_lost)
      .at(peer.task);
}

Error refused_error(const PeerName& peer, const std::string& what) {
  return Error(ErrorCode::unavailable,
               "[rpc.connect] expected " + peer.to_string() + " to accept, got: " + what +
                   "; is the task running, and is this its address?",
               ErrorCause::peer_lost)
      .at(peer.task);
}

Error expired_error(const PeerName& peer) {
  return Error(ErrorCode::deadline_exceeded,
               "[rpc.connect] expected an answer from " + peer.to_string() +
                   " before the deadline, got none; is its host up and reachable?")
      .at(peer.task);
}

Error reading_failed(const PeerName& peer, const Error& error) {
  if (error.code() == ErrorCode::data_loss) broken_count.fetch_add(1, std::memory_order_relaxed);
  Error named(error.code(), error.message() + "; it came from " + peer.to_string(),
              ErrorCause::peer_lost);
  // For an accepted connection, the accepting code knows whether the peer is a stranger, and logs.
  if (!peer.task.empty()) log_warn("closing the connection: ", named.message());
  return std::move(named).at(peer.task);
}

Error broken_frame_farewell(const Error& error) {
  return Error(ErrorCode::unavailable,
               "[rpc.channel] it received a broken frame and closed the connection: " +
                   error.message() + "; see what is between the two hosts",
               ErrorCause::peer_lost);
}

void ChannelEnd::deliver(Frame frame) {
  if (is_closed() || !handlers_.on_frame) return;
  try {
    handlers_.on_frame(std::move(frame));
  } catch (...) {
    const Error error = current_error();
    log_error("handler of ", text_, " failed, closing: ", error.what());
    set_closed(error);
  }
}

void ChannelEnd::finish() {
  Channel::Handlers handlers = std::exchange(handlers_, {});
  try {
    if (handlers.on_closed) handlers.on_closed(reason());
  } catch (...) {
    log_error("on_closed of ", text_, " failed: ", current_error().what());
  }
}

bool ChannelEnd::set_closed(Error reason) {
  Lock lock(mutex_);
  if (reason_) return false;
  reason_ = std::move(reason);
  is_closed_.store(true, std::memory_order_release);
  return true;
}

Error ChannelEnd::reason() const {
  Lock lock(mutex_);
  return reason_ ? *reason_ : lost_error(name_, "closed");
}

Error ChannelEnd::cancelled() const {
  return Error(ErrorCode::cancelled, "[rpc.channel] the channel to " + text_ + " was closed here");
}

void ChannelEnd::check_open() const {
  if (!is_closed()) return;
  const Error why = reason();
  throw Error(
      ErrorCode::unavailable,
      "[rpc.send] expected an open channel to " + text_ + ", got a closed one: " + why.message(),
      why.code() == ErrorCode::cancelled ? ErrorCause::none : ErrorCause::peer_lost)
      .at(name_.task);
}

std::thread start_thread(std::function<void()> body) {
  return start_thread_without_signals("for the connections to other tasks", std::move(body));
}

void AcceptedChannels::add(const std::shared_ptr<Channel>& channel,
                           std::function<bool()> is_stranger) {
  std::shared_ptr<Channel> to_close = channel;
  {
    Lock lock(mutex_);
    std::erase_if(channels_, [](const Accepted& known) { return known.channel.expired(); });
    if (!is_closed_) {
      channels_.push_back({channel, std::move(is_stranger)});
      to_close = oldest_stranger_too_many();
    }
  }
  if (to_close) to_close->close();
}

std::shared_ptr<Channel> AcceptedChannels::oldest_stranger_too_many() {
  const Accepted* oldest = nullptr;
  std::size_t count = 0;
  for (const Accepted& known : channels_) {
    if (!known.is_stranger || !known.is_stranger()) continue;
    if (count++ == 0) oldest = &known;
  }
  return count > kStrangersMax ? oldest->channel.lock() : nullptr;
}

void AcceptedChannels::close_all() noexcept {
  std::vector<Accepted> channels;
  {
    Lock lock(mutex_);
    is_closed_ = true;
    channels.swap(channels_);
  }
  for (const Accepted& known : channels) {
    if (const auto channel = known.channel.lock()) channel->close();
  }
}

std::optional<Channel::Handlers> ask_acceptor(const AcceptHandler& accept,
                                              const std::shared_ptr<Channel>& channel) {
  try {
    return accept(channel);
  } catch (...) {
    log_error("refused ", channel->peer(), ": ", current_error().what());
    channel->close();  // others may still hold it
    return std::nullopt;
  }
}

}  // namespace cohort::rpc::internal

namespace cohort::rpc {

std::uint64_t broken_frames() noexcept {
  return internal::broken_count.load(std::memory_order_relaxed);
}

}  // namespace cohort::rpc
