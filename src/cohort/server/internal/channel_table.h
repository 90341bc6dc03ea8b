// SPDX-License-Identifier: Apache-2.0
// The open data channels of a server: each greets first, then talks to its coordinator's job.
#pragma once

#include <functional>
#include <memory>
#include <unordered_map>

#include "cohort/core/mutex.h"
#include "cohort/rpc/channel.h"
#include "cohort/server/internal/job.h"

namespace cohort::server {

// Thread-safe.
class ChannelTable {
 public:
  // The job a greeting belongs to; throws what the caller should hear.
  using Greet = std::function<std::shared_ptr<Job>(const rpc::Hello& hello)>;
  explicit ChannelTable(Greet greet) : greet_(std::move(greet)) {}

  rpc::Channel::Handlers accept(std::shared_ptr<rpc::Channel> channel);
  // Whether no channel of this task, greeted under this start of the coordinator, is left within
  // the deadline.
  bool await_gone(const std::string& task, std::uint64_t coordinator_incarnation,
                  Deadline deadline);
  // Closes all, once what they have queued is on its way.
  void close_all(Deadline deadline) noexcept;

 private:
  struct Peer;
  struct Entry {
    std::shared_ptr<rpc::Channel> channel;
    // After the hello.
    std::string task;
    std::uint64_t coordinator_incarnation = 0;
  };
  void receive(Peer& peer, rpc::Frame frame);
  void note_hello(const rpc::Channel* channel, const rpc::Hello& hello);

  const Greet greet_;
  Mutex mutex_;
  Condition changed_;
  std::unordered_map<const rpc::Channel*, Entry> channels_ COHORT_GUARDED_BY(mutex_);
};

}  // namespace cohort::server
