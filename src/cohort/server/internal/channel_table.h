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
  void close_all() noexcept;

 private:
  struct Peer;
  void receive(Peer& peer, rpc::Frame frame);

  const Greet greet_;
  Mutex mutex_;
  std::unordered_map<const rpc::Channel*, std::shared_ptr<rpc::Channel>> channels_
      COHORT_GUARDED_BY(mutex_);
};

}  // namespace cohort::server
