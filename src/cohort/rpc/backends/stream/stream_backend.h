// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <utility>

#include "cohort/rpc/channel.h"
#include "cohort/rpc/frames/channel_end.h"
#include "cohort/rpc/sockets/acceptor.h"

namespace cohort::rpc::backends {

// Plain TCP. Large tensors are sent from and received into their own memory.
std::shared_ptr<Channel> connect_stream(const ConnectOptions& options, Channel::Handlers handlers);

// Channels over sockets that an Acceptor accepted; closes them when destroyed. Thread-safe.
class StreamHost {
 public:
  // `stranger_bytes_max`: the largest frame before the channel's admit().
  StreamHost(AcceptHandler accept, std::size_t stranger_bytes_max)
      : accept_(std::move(accept)), stranger_bytes_max_(stranger_bytes_max) {}
  void take(FileDescriptor socket, std::shared_ptr<internal::Visitor> visitor);

 private:
  const AcceptHandler accept_;
  const std::size_t stranger_bytes_max_;
  internal::AcceptedChannels accepted_;
};

}  // namespace cohort::rpc::backends
