// SPDX-License-Identifier: Apache-2.0
#include "cohort/server/session/open_pushes.h"

#include <algorithm>
#include <sstream>
#include <utility>
#include <vector>

namespace cohort::server {

Error to_error(const LateAnswer& late) {
  std::ostringstream text;
  text << "[server." << late.operation << "] expected " << late.expected << " from " << late.ps
       << " within " << std::chrono::duration<double>(late.waited).count()
       << " s, got none; see whether " << late.ps
       << " or its host hangs, or raise ClusterOptions::data_timeout";
  return Error(ErrorCode::deadline_exceeded, text.str()).at(late.ps);
}

std::uint64_t OpenPushes::add(std::string ps, const std::shared_ptr<rpc::Requester>& link,
                              TimePoint now) {
  const Lock lock(mutex_);
  pushes_.emplace_hint(pushes_.end(), ++last_, Push{std::move(ps), link, now});
  return last_;
}

void OpenPushes::answered(std::uint64_t push) {
  const Lock lock(mutex_);
  pushes_.erase(push);
}

Deadline OpenPushes::give_up_late(Duration timeout, TimePoint now) {
  timeout = std::min(timeout, Duration::max() / 4);  // so that `sent + timeout` does not overflow
  std::vector<Push> late;
  Deadline next;
  {
    const Lock lock(mutex_);
    while (!pushes_.empty() && pushes_.begin()->second.sent + timeout <= now) {
      late.push_back(std::move(pushes_.begin()->second));
      pushes_.erase(pushes_.begin());
    }
    if (!pushes_.empty()) next = Deadline(pushes_.begin()->second.sent + timeout);
  }
  for (const Push& push : late) {  // without the lock, because their answers call answered()
    if (const auto link = push.link.lock())
      link->give_up(to_error({"push", "an acknowledgement", push.ps, timeout}));
  }
  return next;
}

}  // namespace cohort::server
