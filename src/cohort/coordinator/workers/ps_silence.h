// SPDX-License-Identifier: Apache-2.0
// Notices parameter servers that do not answer, for the log.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cohort/core/clock.h"
#include "cohort/rpc/requester.h"

namespace cohort::coordinator::internal {

// Pings parameter servers over the coordinator's connections, and never waits for an answer. It
// only reports: the error comes from the pull or push that waits, at its own timeout. Used only
// from one thread.
class PsSilence {
 public:
  // A server is silent if a ping gets no answer for `patience`, and no other bytes move meanwhile.
  PsSilence(std::size_t servers, Duration patience) : patience_(patience), servers_(servers) {}

  // Call it now and then, with the connection to each server (null: none). Returns the news, a line
  // for each server that has become silent or answers again. `consequence` ends the lines of the
  // former.
  std::vector<std::string> look(const std::vector<std::shared_ptr<rpc::Requester>>& links,
                                TimePoint now, const std::string& consequence);

 private:
  struct Question {
    TimePoint asked;
    rpc::Channel::Progress before;
    std::shared_ptr<std::atomic<bool>> is_answered;  // shared with the channel's handler
  };
  struct Server {
    std::shared_ptr<rpc::Requester> link;  // over which the question was sent
    std::optional<Question> question;      // the last one
    std::optional<TimePoint> silent_since;
  };
  static Question ask(rpc::Requester& link, TimePoint now);

  const Duration patience_;
  std::vector<Server> servers_;
};

}  // namespace cohort::coordinator::internal
