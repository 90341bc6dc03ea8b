// SPDX-License-Identifier: Apache-2.0
// Finds the Visitor of a connection that was handed to gRPC, which names it only "fd:17".
#pragma once

#include <charconv>
#include <memory>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "cohort/core/mutex.h"
#include "cohort/rpc/sockets/acceptor.h"

namespace cohort::rpc::internal {

// Keeps the newest visitor of each descriptor. A call comes from that one although descriptors are
// reused: gRPC closes the descriptor of a connection, even of one that has ended, only after the
// last of its calls (a test checks this). Thread-safe.
class Http2Visitors {
 public:
  void add(int descriptor, std::shared_ptr<Visitor> visitor) {
    const Lock lock(mutex_);
    visitors_[descriptor] = std::move(visitor);
  }
  // Null for an unknown peer.
  std::shared_ptr<Visitor> find(std::string_view grpc_peer) const {
    constexpr std::string_view kPrefix = "fd:";
    if (!grpc_peer.starts_with(kPrefix)) return nullptr;
    grpc_peer.remove_prefix(kPrefix.size());
    int descriptor = -1;
    std::from_chars(grpc_peer.data(), grpc_peer.data() + grpc_peer.size(), descriptor);
    const Lock lock(mutex_);
    const auto found = visitors_.find(descriptor);
    return found == visitors_.end() ? nullptr : found->second;
  }

 private:
  mutable Mutex mutex_;
  std::unordered_map<int, std::shared_ptr<Visitor>> visitors_ COHORT_GUARDED_BY(mutex_);
};

}  // namespace cohort::rpc::internal
