// SPDX-License-Identifier: Apache-2.0
// The deadlines of closures that have one, in order.
#pragma once

#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "cohort/coordinator/queue/closure_queue.h"
#include "cohort/core/clock.h"

namespace cohort::coordinator {

// How long a closure may take from its schedule() on.
struct ClosureDeadline {
  TimePoint at;
  Duration after = Duration::zero();
};

// Used only under the coordinator's lock.
class ClosureDeadlines {
 public:
  void add(ClosureId closure, TimePoint at) { all_.emplace(at, closure); }
  void erase(ClosureId closure, TimePoint at) { all_.erase({at, closure}); }
  void clear() { all_.clear(); }
  // The latest time there is, if no closure has one.
  TimePoint first() const { return all_.empty() ? TimePoint::max() : all_.begin()->first; }
  // Returns the closures whose deadlines have passed, and forgets them.
  std::vector<ClosureId> take_passed(TimePoint now) {
    std::vector<ClosureId> passed;
    for (; !all_.empty() && all_.begin()->first <= now; all_.erase(all_.begin()))
      passed.push_back(all_.begin()->second);
    return passed;
  }

 private:
  std::set<std::pair<TimePoint, ClosureId>> all_;
};

}  // namespace cohort::coordinator
