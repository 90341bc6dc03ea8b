// SPDX-License-Identifier: Apache-2.0
// How the workers of a synchronous job agree on what none knows alone: seeds and step counts when
// an iterator starts, and in each step the end of the data and errors.
//
// A vote carries a status, not a boolean: an error of one worker is thrown on every worker, so that
// none waits for a worker that will not come. Every wait has a deadline, whose error names the
// missing workers.
// for.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cohort/core/bytes.h"
#include "cohort/core/clock.h"
#include "cohort/core/error.h"
#include "cohort/core/export.h"

namespace cohort {

// A worker's report on its part of a step.
struct COHORT_API StepVote {
  std::int64_t components = 0;  // replicas that have data
  std::int64_t examples = 0;
  // The error took the place of a whole global batch, so the other workers drop their parts of it.
  bool costs_batch = false;
  std::optional<Error> error;
};
// The sum over the workers. `error` is that of the first worker that has one, with the worker as
// origin.
struct COHORT_API StepVerdict {
  std::int64_t components = 0;
  std::int64_t examples = 0;
  bool costs_batch = false;  // of any worker
  std::optional<Error> error;
};

// The message exchange of one iterator: all workers must make the same calls in the same order. If
// one is destroyed early, the calls of the others that wait for this worker fail as aborted. A
// missed deadline ends it for all, since its worker would be a call ahead of the others: later
// calls are aborted. Used from one thread.
class COHORT_API StepAgreement {
 public:
  virtual ~StepAgreement() = default;
  // Returns the bytes of every worker, in order. `what` is for messages.
  virtual std::vector<Bytes> exchange(Bytes mine, std::string_view what, Deadline deadline) = 0;
  // An implementation may carry votes in messages that a step sends anyway.
  virtual StepVerdict vote(const StepVote& mine, Deadline deadline);
  // exchange() of the result of `make`. If `make` throws on one worker, all throw that error, with
  // the worker as origin.
  std::vector<Bytes> exchange_made(const std::function<Bytes()>& make, std::string_view what,
                                   Deadline deadline);
};

// The workers of a job, as one of them sees them. Thread-safe.
class COHORT_API WorkerGroup {
 public:
  virtual ~WorkerGroup() = default;
  virtual int num_workers() const = 0;
  virtual int worker() const = 0;
  // The n-th call of each worker starts the same exchange.
  virtual std::unique_ptr<StepAgreement> start(std::string_view what) = 0;
};

}  // namespace cohort
