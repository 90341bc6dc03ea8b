// SPDX-License-Identifier: Apache-2.0
// One run of a traced step in all replicas of this process, which meet where they combine values.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "cohort/core/effect_handler.h"
#include "cohort/replicas/step_call.h"

namespace cohort::internal {

// The values that a replica brings to a meeting. They are not changed until the run has ended.
struct StepOffer {
  std::vector<at::Tensor> values;
  std::vector<double> numbers;
  // Memory that stays from run to run.
  std::vector<at::Tensor> sums;
};

// All replicas make the same meetings in the same order, which was checked before. Unlike in
// ReplicaRun, a meeting merges nothing: each replica computes what it needs of the others' offers.
// Used for one run after the other; in a run, each replica is one thread.
class StepRun {
 public:
  StepRun(std::size_t replicas, std::size_t meetings);

  // Called by one thread, before and after the replicas run.
  void begin();
  void end();
  // Tells that a replica has failed: the others do not wait for it.
  void fail(std::size_t replica, std::exception_ptr error);
  // After all replicas have ended: throws the error of the one that failed, if there is one.
  void rethrow_error() const;

 private:
  friend class StepReplica;
  static constexpr std::uint32_t kFailed = 1U << 31U;
  // Arrives, and waits until there were that many arrivals. Returns false if a replica has failed.
  bool arrive(std::uint32_t arrivals);
  StepOffer& offer(std::size_t replica, std::size_t meeting) {
    return offers_[replica * meetings_ + meeting];
  }

  const std::size_t count_;
  const std::size_t meetings_;
  // The arrivals at all meetings so far, and whether a replica has failed.
  std::atomic<std::uint32_t> state_{0};
  std::vector<StepOffer> offers_;
  // Each replica has its own. They stay until the run has ended, since others look at them in
  // meetings.
  std::vector<std::vector<at::Tensor>> inputs_;
  std::vector<std::exception_ptr> errors_;
  // Whether a replica's error follows from another's; char, as replicas write at the same time
  // (std::vector<bool> has bits).
  std::vector<char> was_released_;
};

// One replica of a run: the host of its program. Used only from the replica's thread.
class StepReplica final : public EffectHandler {
 public:
  using Calls = std::vector<std::shared_ptr<const JoinedCall>>;
  // `calls` and `variables`, which are those of the program, must outlive it.
  StepReplica(StepRun& run, std::size_t index, const Calls& calls, std::vector<at::Tensor> inputs,
              std::span<const at::Tensor> variables);

  std::size_t index() const { return index_; }
  std::size_t count() const { return run_.count_; }
  const std::vector<at::Tensor>& inputs() const { return run_.inputs_[index_]; }
  // The contribution of this replica to the next meeting.
  StepOffer& own_offer() { return run_.offer(index_, meeting_); }
  // Waits until all replicas have come to this meeting; of(i) is then what replica i has brought.
  // Throws cancelled if another replica has failed.
  void meet();
  const StepOffer& of(std::size_t replica) const { return run_.offer(replica, meeting_); }
  // The memory of replica 0's offer, into which all may write.
  std::vector<at::Tensor>& shared_sums() { return run_.offer(0, meeting_).sums; }
  // In a meeting: what all replicas need of their offers. Each computes it itself; or, if `once`,
  // replica 0 does for all of them, which get the same tensors.
  template <class F>
  std::vector<at::Tensor> together(bool once, const F& compute) {
    if (!once) return compute();
    if (index_ == 0) shared_sums() = compute();
    meet();
    return shared_sums();
  }
  // Keeps what one call of the program begins and another ends; the run ends it if none does.
  void hold(std::shared_ptr<const void> scope) { scope_ = std::move(scope); }
  // Ends the meeting, of which each replica has taken what it needs.
  void leave() { ++meeting_; }
  // An argument of a replica that has come to a meeting.
  const at::Tensor& argument(std::size_t replica, std::size_t number) const {
    return run_.inputs_[replica][number];
  }

  std::vector<at::Tensor> call(std::int64_t number, std::vector<at::Tensor> values) override;
  std::vector<at::Tensor> next_segment(std::span<const std::int64_t> variables) override;
  // A trace of a step that runs here records none of these.
  std::vector<at::Tensor> iterator_next(std::int64_t resource) override;
  void update(Effect effect) override;

 private:
  StepRun& run_;
  const std::size_t index_;
  const Calls& calls_;
  const std::span<const at::Tensor> variables_;
  std::size_t meeting_ = 0;
  std::uint32_t arrivals_ = 0;
  std::shared_ptr<const void> scope_;
};

}  // namespace cohort::internal
