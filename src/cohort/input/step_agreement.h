// SPDX-License-Identifier: Apache-2.0
// How the workers of a synchronous job agree on what each of them cannot know alone: seeds and step
// counts when an iterator starts, and in each step the end of the data and errors.
//
// A status is reduced, not a boolean: an error of one worker is every worker's error, so none waits
// for a worker that will not come. Every wait has a deadline whose error names the workers waited
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

// What a worker says of its part of a step.
struct COHORT_API StepVote {
  std::int64_t components = 0;  // replicas that have data
  std::int64_t examples = 0;
  // The error took the place of a global batch: the others leave out their parts of it.
  bool costs_batch = false;
  std::optional<Error> error;
};
// The sum over the workers. `error` is that of the first worker that has one, which is its origin.
struct COHORT_API StepVerdict {
  std::int64_t components = 0;
  std::int64_t examples = 0;
  bool costs_batch = false;  // of any worker
  std::optional<Error> error;
};

// One iterator's conversation: all workers make the same calls in the same order. Ending it early
// makes the calls of the others that wait for this worker fail as aborted. A missed deadline ends
// it for all: whoever gave up would be a call ahead of the others, so that later calls are aborted.
// Used from one thread.
class COHORT_API StepAgreement {
 public:
  virtual ~StepAgreement() = default;
  // The bytes of every worker, in order. `what` is for messages.
  virtual std::vector<Bytes> exchange(Bytes mine, std::string_view what, Deadline deadline) = 0;
  // An implementation may carry votes with messages that a step sends anyway.
  virtual StepVerdict vote(const StepVote& mine, Deadline deadline);
  // The same of what `make` gives; what it throws on one worker is thrown on all, with the worker
  // as origin.
  std::vector<Bytes> exchange_made(const std::function<Bytes()>& make, std::string_view what,
                                   Deadline deadline);
};

// The workers of a job as one of them sees them. Thread-safe.
class COHORT_API WorkerGroup {
 public:
  virtual ~WorkerGroup() = default;
  virtual int num_workers() const = 0;
  virtual int worker() const = 0;
  // The n-th conversation of each worker is one conversation.
  virtual std::unique_ptr<StepAgreement> start(std::string_view what) = 0;
};

}  // namespace cohort
