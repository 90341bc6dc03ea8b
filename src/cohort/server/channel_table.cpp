// SPDX-License-Identifier: Apache-2.0
#include "cohort/server/internal/channel_table.h"

#include <algorithm>
#include <thread>

#include "cohort/core/log.h"

namespace cohort::server {
namespace {

constexpr auto kSendPoll = std::chrono::milliseconds(1);

}  // namespace

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
    channels_[key].channel = std::move(channel);
  }
  rpc::Channel::Handlers handlers;
  handlers.on_frame = [this, peer](rpc::Frame frame) { receive(*peer, std::move(frame)); };
  handlers.on_closed = [this, peer, key](const Error& reason) {
    log_debug("channel closed: ", reason.what());
    std::shared_ptr<rpc::Channel> last;
    {
      const Lock lock(mutex_);
      const auto found = channels_.find(key);
      if (found == channels_.end()) return;
      last = std::move(found->second.channel);
      channels_.erase(found);
    }
    changed_.notify_all();
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
    const rpc::Hello hello = rpc::hello_of(frame);
    peer.job = greet_(hello);
    note_hello(channel.get(), hello);
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

void ChannelTable::note_hello(const rpc::Channel* channel, const rpc::Hello& hello) {
  const Lock lock(mutex_);
  const auto found = channels_.find(channel);
  if (found == channels_.end()) return;
  found->second.task = hello.task;
  found->second.coordinator_incarnation = hello.coordinator_incarnation;
}

bool ChannelTable::await_gone(const std::string& task, std::uint64_t coordinator_incarnation,
                              Deadline deadline) {
  const Lock lock(mutex_);
  return changed_.wait(mutex_, deadline, [&]() COHORT_NO_THREAD_SAFETY_ANALYSIS {
    return std::none_of(channels_.begin(), channels_.end(), [&](const auto& entry) {
      return entry.second.task == task &&
             entry.second.coordinator_incarnation == coordinator_incarnation;
    });
  });
}

void ChannelTable::close_all(Deadline deadline) noexcept {
  std::unordered_map<const rpc::Channel*, Entry> channels;
  {
    const Lock lock(mutex_);
    channels.swap(channels_);
  }
  for (const auto& [key, entry] : channels) {
    while (entry.channel->queued_bytes() > 0 && !deadline.has_expired())
      std::this_thread::sleep_for(kSendPoll);
    entry.channel->close();
  }
}

}  // namespace cohort::server
