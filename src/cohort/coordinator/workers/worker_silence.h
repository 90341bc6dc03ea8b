// SPDX-License-Identifier: Apache-2.0
// Finds out whether workers are alive, and counts the questions that they did not answer.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "cohort/core/clock.h"
#include "cohort/rpc/requester.h"

namespace cohort::coordinator::internal {

// Returns whether bytes have come from the peer or have gone to it meanwhile. An answer may have to
// wait for a large frame that is sent before it, and so may the question.
bool has_advanced(const rpc::Channel::Progress& before, const rpc::Channel::Progress& now);

// Asks the peers of several channels for a sign of life, all at once. Used only from one thread,
// which must not hold a lock that a channel's handlers need.
class ChannelPings {
 public:
  // Sends a ping over each channel; null: none is asked.
  explicit ChannelPings(std::vector<std::shared_ptr<rpc::Requester>> channels);
  // Waits for the answers until the deadline. For each channel: whether it is open and nothing has
  // shown that its peer is alive.
  std::vector<bool> silent_at(Deadline deadline);

 private:
  struct Answers;  // shared with the channels' handlers
  const std::vector<std::shared_ptr<rpc::Requester>> channels_;
  std::vector<rpc::Channel::Progress> before_;
  const std::shared_ptr<Answers> answers_;
};

// How many questions in a row a worker has left unanswered. Thread-compatible.
class SilenceCount {
 public:
  // Counts a call over the connection of this epoch; for a new connection, counting starts at zero.
  // Returns true if too many calls in a row were silent; then counting starts again.
  bool add(std::uint64_t epoch, bool is_silent) {
    if (epoch != epoch_ || !is_silent) silences_ = 0;
    epoch_ = epoch;
    if (!is_silent || ++silences_ < kMax) return false;
    silences_ = 0;
    return true;
  }

 private:
  static constexpr int kMax = 2;
  std::uint64_t epoch_ = 0;
  int silences_ = 0;
};

}  // namespace cohort::coordinator::internal
