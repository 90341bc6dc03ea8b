// SPDX-License-Identifier: Apache-2.0
#include "cohort/server/internal/channel_table.h"

#include "cohort/core/log.h"

namespace cohort::server {

// Used only from its channel's thread.
struct ChannelTable::Peer {
  std::weak_ptr<rpc::Channel> channel;
  std::shared_ptr<CompletionSender> sender;
  std::shared_ptr<Job> job;  // after the hello
};

rpc::Channel::Handlers ChannelTable::accept(std::shared_ptr<rpc::Channel> channel) {
  const auto peer = std::make_shared<Peer>();
  peer->channel = channel;
  peer->sender = std::make_shared<CompletionSender>(channel);
  const rpc::Channel* key = channel.get();
  {
    const Lock lock(mutex_);
    channels_[key] = std::move(channel);
  }
  rpc::Channel::Handlers handlers;
  handlers.on_frame = [this, peer](rpc::Frame frame) { receive(*peer, std::move(frame)); };
  handlers.on_closed = [this, peer, key](const Error& reason) {
    log_debug("channel closed: ", reason.what());
    std::shared_ptr<rpc::Channel> last;
    const Lock lock(mutex_);
    const auto found = channels_.find(key);
    if (found == channels_.end()) return;
    last = std::move(found->second);
    channels_.erase(found);
  };
  return handlers;
}

void ChannelTable::receive(Peer& peer, rpc::Frame frame) {
  const std::shared_ptr<rpc::Channel> channel = peer.channel.lock();
  if (!channel) return;
  const std::uint64_t id = frame.id;
  const bool wants_answer = frame.role == rpc::Frame::Role::request;
  try {
    if (peer.job) {
      peer.job->handle(std::move(frame), channel, peer.sender);
      return;
    }
    COHORT_CHECK(static_cast<rpc::MessageType>(frame.type) == rpc::MessageType::hello,
                 ErrorCode::failed_precondition,
                 "[server.receive] expected a hello first, got message type ", frame.type);
    peer.job = greet_(rpc::hello_of(frame));
    rpc::Frame welcome;
    welcome.role = rpc::Frame::Role::response;
    welcome.id = id;
    channel->send(std::move(welcome));
  } catch (...) {
    const Error error = current_error();
    if (!wants_answer) {
      log_warn("a message of ", channel->peer(), " was refused: ", error.what());
      channel->close();
      return;
    }
    try {
      channel->send(rpc::error_frame(id, error));
    } catch (const Error& gone) {
      log_debug("an error could not be reported: ", gone.what());
    }
  }
}

void ChannelTable::close_all() noexcept {
  std::unordered_map<const rpc::Channel*, std::shared_ptr<rpc::Channel>> channels;
  {
    const Lock lock(mutex_);
    channels.swap(channels_);
  }
  for (const auto& [key, channel] : channels) channel->close();
}

}  // namespace cohort::server
