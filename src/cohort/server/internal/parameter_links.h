// SPDX-License-Identifier: Apache-2.0
// A worker's connections to the parameter servers, made at first use and again after a loss.
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
  std::vector<std::string> addresses;  // of ps:0, ps:1, …
  rpc::Identity self;
  std::uint64_t coordinator_incarnation = 0;
  rpc::PayloadChecksums payload_checksums = rpc::PayloadChecksums::between_hosts;
  Duration connect_timeout = std::chrono::seconds(1);  // where nobody listens: all were met before
  Duration data_timeout = std::chrono::minutes(5);     // where somebody does, and says nothing
};

// Thread-safe.
class ParameterLinks {
 public:
  explicit ParameterLinks(ParameterLinkOptions options);
  // Connects when needed; throws with origin "ps:i" when it cannot: unavailable where nobody
  // listens, deadline_exceeded where nothing is answered. After close(): cancelled.
  std::shared_ptr<rpc::Requester> get(std::uint32_t ps);
  void close() noexcept;
  // How often a connection was found broken.
  std::uint64_t losses() const { return losses_; }

 private:
  struct Link {
    Mutex mutex;
    std::shared_ptr<rpc::Requester> requester COHORT_GUARDED_BY(mutex);
  };
  void expect_open(std::uint32_t ps) const;

  const ParameterLinkOptions options_;
  std::atomic<bool> is_closed_{false};
  std::atomic<std::uint64_t> losses_{0};
  std::vector<std::unique_ptr<Link>> links_;
};

}  // namespace cohort::server
