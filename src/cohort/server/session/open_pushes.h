// SPDX-License-Identifier: Apache-2.0
// The pushes of a worker that no parameter server has acknowledged yet.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "cohort/core/mutex.h"
#include "cohort/rpc/requester.h"

namespace cohort::server {

// The parts of the error about a parameter server that does not answer.
struct LateAnswer {
  std::string operation;  // "push"
  std::string expected;   // "an acknowledgement"
  std::string ps;         // "ps:0"
  Duration waited;
};
Error to_error(const LateAnswer& late);

// Thread-safe. Answers that arrive later keep this object alive after the runner.
class OpenPushes {
 public:
  // Returns the number of the push, for answered().
  std::uint64_t add(std::string ps, const std::shared_ptr<rpc::Requester>& link, TimePoint now);
  void answered(std::uint64_t push);
  // Gives up the links of the pushes that have waited for `timeout`. Everything that is open on
  // such a link is then answered with an error that names the parameter server. Returns the time at
  // which the oldest remaining push will have waited for `timeout`.
  Deadline give_up_late(Duration timeout, TimePoint now);

 private:
  struct Push {
    std::string ps;
    // Weak, because an answer that waits in the link holds this object.
    std::weak_ptr<rpc::Requester> link;
    TimePoint sent;
  };
  Mutex mutex_;
  std::map<std::uint64_t, Push> pushes_ COHORT_GUARDED_BY(mutex_);  // the oldest one is first
  std::uint64_t last_ COHORT_GUARDED_BY(mutex_) = 0;
};

}  // namespace cohort::server
