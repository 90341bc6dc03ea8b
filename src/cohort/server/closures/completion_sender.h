// SPDX-License-Identifier: Apache-2.0
// Reports the ends of closures to their coordinator, several in one frame if they follow quickly.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "cohort/core/mutex.h"
#include "cohort/rpc/channel.h"
#include "cohort/rpc/messages.h"

namespace cohort::server {

// Thread-safe. After the channel has closed, ends are dropped, because the coordinator has taken
// its closures back. If ends cannot be sent for another reason, each of them is reported as failed.
class CompletionSender {
 public:
  explicit CompletionSender(std::weak_ptr<rpc::Channel> channel) : channel_(std::move(channel)) {}
  // `more_follow` means that another end will come within microseconds, so this one may wait for
  // it.
  void end(rpc::ClosureEnd end, bool more_follow);
  void flush();

 private:
  static constexpr std::size_t kBatchMax = 32;

  static void report_failure(rpc::Channel& channel, const std::vector<std::uint64_t>& closures,
                             const Error& error);

  std::weak_ptr<rpc::Channel> channel_;
  Mutex mutex_;
  rpc::CompletedBatch batch_ COHORT_GUARDED_BY(mutex_);
};

}  // namespace cohort::server
