// SPDX-License-Identifier: Apache-2.0
// The decisions of workers that train together after a step, though their clocks and hooks differ.
#pragma once

#include <cstdint>

#include "cohort/core/clock.h"
#include "cohort/strategy/strategy.h"

namespace cohort::estimator {

// Asks all workers about once a second, since a message after each step would cost more than a
// short step. With one worker it asks nobody. Used only from the thread of train().
class WorkerAgreement {
 public:
  WorkerAgreement(Strategy& strategy, const Clock& clock);

  struct Wish {
    bool save = false;  // counts on the first worker
    bool stop = false;
  };
  // All workers make this call after the same step, and get the same. A wish stays until they have
  // agreed on it.
  Wish agree(std::int64_t step, Wish own);

 private:
  std::int64_t next_interval() const;

  Strategy& strategy_;
  const Clock& clock_;
  const bool is_shared_;
  Wish open_;
  std::int64_t next_step_ = 0;  // in which the workers are asked
  std::int64_t interval_ = 1;   // steps between two questions
  TimePoint asked_;
};

}  // namespace cohort::estimator
