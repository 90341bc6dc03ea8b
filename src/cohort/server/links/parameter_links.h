// SPDX-License-Identifier: Apache-2.0
// A worker's connections to the parameter servers. Each is made at its first use, and again after a
// loss.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cohort/core/mutex.h"
#include "cohort/rpc/connection.h"

namespace cohort::server {

struct ParameterLinkOptions {
  std::vector<std::string> addresses;  // those of ps:0, ps:1, …
  rpc::Identity self;
  std::uint64_t coordinator_incarnation = 0;
  PayloadChecksums payload_checksums = PayloadChecksums::between_hosts;
  Duration connect_timeout = std::chrono::seconds(1);  // short, as all servers were there before
  Duration data_timeout = std::chrono::minutes(5);     // for the handshake of a server that listens
};

// Thread-safe.
class ParameterLinks {
 public:
  explicit ParameterLinks(ParameterLinkOptions options);
  // Connects if necessary. If it cannot, it throws with the origin "ps:i": unavailable if nobody
  // listens, deadline_exceeded if there is no answer within data_timeout; if there was none before,
  // within connect_timeout, since closures would wait one after the other. After close() it throws
  // cancelled.
  std::shared_ptr<rpc::Requester> get(std::uint32_t ps);
  // To be called after a server gave no answer within data_timeout.
  void note_silence(std::uint32_t ps);
  void close() noexcept;
  // The number of connections that were found broken.
  std::uint64_t losses() const { return losses_; }

 private:
  struct Link {
    Mutex mutex;
    std::shared_ptr<rpc::Requester> requester COHORT_GUARDED_BY(mutex);
    bool was_silent COHORT_GUARDED_BY(mutex) = false;  // for the whole data_timeout
  };
  void expect_open(std::uint32_t ps) const;

  const ParameterLinkOptions options_;
  std::atomic<bool> is_closed_{false};
  std::atomic<std::uint64_t> losses_{0};
  std::vector<std::unique_ptr<Link>> links_;
};

}  // namespace cohort::server
