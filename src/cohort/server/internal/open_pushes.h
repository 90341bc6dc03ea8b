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

// What is said of a parameter server that did not answer for so long.
struct LateAnswer {
  std::string operation;  // "push"
  std::string expected;   // "an acknowledgement"
  std::string ps;         // "ps:0"
  Duration waited;
};
Error to_error(const LateAnswer& late);

// Thread-safe. Outlives the runner in answers to come.
class OpenPushes {
 public:
  // Its number, for answered().
  std::uint64_t add(std::string ps, const std::shared_ptr<rpc::Requester>& link, TimePoint now);
  void answered(std::uint64_t push);
  // Gives up the links of the pushes that have waited for `timeout`, which answers all that is open
  // on them, with an error that names the parameter server. Returns when the oldest of the others
  // will have waited so long.
  Deadline give_up_late(Duration timeout, TimePoint now);

 private:
  struct Push {
    std::string ps;
    std::weak_ptr<rpc::Requester> link;  // an answer that waits in it holds this object
    TimePoint sent;
  };
  Mutex mutex_;
  std::map<std::uint64_t, Push> pushes_ COHORT_GUARDED_BY(mutex_);  // oldest first
  std::uint64_t last_ COHORT_GUARDED_BY(mutex_) = 0;
};

}  // namespace cohort::server
