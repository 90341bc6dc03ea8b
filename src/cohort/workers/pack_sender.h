// SPDX-License-Identifier: Apache-2.0
// A thread that sums packs of gradients over the workers while others compute.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "cohort/collective/group.h"
#include "cohort/core/clock.h"
#include "cohort/core/error.h"
#include "cohort/core/mutex.h"

namespace cohort::internal {

// Half precision is added in float32.
at::ScalarType type_of_sum(at::ScalarType type);
// Added to any number, it does not change it: 0 would make +0 of -0.
at::Tensor nothing_to_add(const std::vector<std::int64_t>& sizes, at::ScalarType type);

// One gradient of this worker, dense and on the CPU, and the sum over all.
struct PackedGradient {
  at::Tensor own;  // without a value: this worker has none
  std::vector<std::int64_t> sizes = {};
  at::ScalarType type = at::kFloat;
  at::Tensor sum = {};  // in memory of its own, of type_of_sum(type)
};
// Gradients that travel in one call. The sender writes the sums; nobody reads them before
// PackSender::wait() has returned.
using GradientPack = std::vector<PackedGradient>;

// Sends packs one after the other, in the order of send(), through a group that nothing else uses.
// All workers send the same packs in the same order, but not at the same time. Thread-safe.
class PackSender {
 public:
  struct Options {
    Duration timeout;  // of each pack, from its turn on
    bool sends_bfloat16 = false;
  };
  PackSender(std::shared_ptr<collective::Group> group, const Options& options);
  // Waits for the pack that is on its way: until all workers have sent it, or have stopped or
  // failed, or for its timeout.
  ~PackSender();

  void send(std::shared_ptr<GradientPack> pack);
  // Waits until all packs have been sent. Throws the error of the one that failed; aborted after
  // stop().
  void wait();
  // No further pack is sent: the thread leaves the group and ends, and those of other workers that
  // wait for this one fail. Waits for no other worker. When it returns, no gradient is read.
  void stop();
  // Whether all packs so far have been sent, or will be.
  bool is_in_order() const;

 private:
  void loop(std::shared_ptr<collective::Group> group);
  void reduce(collective::Group& group, GradientPack& pack);
  std::shared_ptr<GradientPack> next();

  const Options options_;
  mutable Mutex mutex_;
  Condition changed_;
  std::deque<std::shared_ptr<GradientPack>> queue_ COHORT_GUARDED_BY(mutex_);
  bool is_sending_ COHORT_GUARDED_BY(mutex_) = false;
  bool is_reading_ COHORT_GUARDED_BY(mutex_) = false;  // the gradients of the pack
  bool is_stopped_ COHORT_GUARDED_BY(mutex_) = false;
  std::optional<Error> error_ COHORT_GUARDED_BY(mutex_);
  std::thread thread_;  // the last member, since it uses the others
};

}  // namespace cohort::internal
