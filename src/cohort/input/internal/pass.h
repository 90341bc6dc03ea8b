// SPDX-License-Identifier: Apache-2.0
// One pass of one worker over a distributed dataset.
#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "cohort/input/distributed_iterator.h"
#include "cohort/input/internal/feed.h"
#include "cohort/input/internal/plan.h"
#include "cohort/input/multi_device_iterator.h"
#include "cohort/input/step_agreement.h"

namespace cohort::input {

struct JobPosition;  // job_position.h

// Used from one thread at a time.
class Pass {
 public:
  explicit Pass(std::shared_ptr<Plan> plan);

  const Plan& plan() const { return *plan_; }
  // nullopt at the end. `hands_out_all`: also an uneven last step of static shapes.
  std::optional<DistributedElement> next(bool hands_out_all);
  Bytes save();
  void restore(std::span<const std::byte> position);

 private:
  struct Note;  // what workers tell each other at the start

  Deadline deadline() const;
  void agree_on_start();
  void follow(const std::vector<Note>& notes);
  void open(std::vector<FeedPosition> positions);
  // Throws on all workers what one of them says.
  void check_all(const std::exception_ptr& error);
  StepVerdict agree(StepVote mine, const std::exception_ptr& error);

  // The next element of a local replica, and taking it away.
  const Fields* front(std::size_t replica);
  void pop(std::size_t replica);
  void pop_all(const std::vector<const Fields*>& fronts);
  DistributedElement take(const std::vector<const Fields*>& fronts,
                          std::optional<std::int64_t> global_num_examples);
  Nest dummy(std::size_t replica) const;
  std::nullopt_t end();

  JobPosition head() const;

  std::shared_ptr<Plan> plan_;
  std::unique_ptr<StepAgreement> agreement_;  // nullptr: one worker
  RunOptions run_;
  Dealing dealing_;
  bool is_own_ = true;         // false: pipelines of a job of other numbers
  std::int64_t num_replicas_;  // of the job that the pipelines belong to
  bool handles_partial_batches_;
  bool votes_ = false;
  std::optional<std::int64_t> steps_left_;  // where all workers know them
  std::uint64_t steps_ = 0;
  bool is_over_ = false;
  std::vector<std::unique_ptr<MultiDeviceIterator>> feeds_;
};

}  // namespace cohort::input
