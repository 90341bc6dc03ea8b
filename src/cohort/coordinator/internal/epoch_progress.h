// SPDX-License-Identifier: Apache-2.0
// How far each worker is in one epoch.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "cohort/core/error.h"

namespace cohort::coordinator::internal {

// A worker's steps are numbered 0, 1, …; the first one without an element is the worker's end.
// Several are scheduled ahead, so some come after the end and do nothing. Used only under its
// owner's lock.
class EpochProgress {
 public:
  explicit EpochProgress(std::size_t workers) : workers_(workers) {}
  std::size_t num_workers() const { return workers_.size(); }

  // What the worker's data says of the number of its elements: one step more is scheduled, which
  // finds the end.
  void expect(std::size_t worker, std::uint64_t elements) { workers_[worker].expected = elements; }
  // Whether another step should be scheduled, where at most `open_max` are to be open.
  bool wants_step(std::size_t worker, std::size_t open_max) const {
    const Worker& one = workers_[worker];
    const bool may_have_one = !one.expected || one.next <= std::max(*one.expected, one.run_bound);
    return !one.end && one.open < open_max && may_have_one;
  }
  bool knows_end(std::size_t worker) const {
    return workers_[worker].end || workers_[worker].expected;
  }
  // Whether there is no element for this step, by what is known so far.
  bool expects_end(std::size_t worker, std::uint64_t step) const {
    const Worker& one = workers_[worker];
    if (one.end) return step >= *one.end;
    return one.expected && step >= std::max(*one.expected, one.run_bound);
  }
  // The number of the step that is scheduled now.
  std::uint64_t add_step(std::size_t worker) {
    ++workers_[worker].open;
    return workers_[worker].next++;
  }
  // One is open no more.
  void close_step(std::size_t worker) { --workers_[worker].open; }
  // It ran, on an element.
  void note_run(std::size_t worker, std::uint64_t step);
  // There was no element for it.
  void note_end(std::size_t worker, std::uint64_t step);

  bool is_over() const;
  bool has_open() const;
  // Steps of it are missing, or its end is not known.
  bool waits_for(std::size_t worker) const {
    return !workers_[worker].end || workers_[worker].open > 0;
  }
  // Some of its elements were asked for.
  bool has_begun(std::size_t worker) const { return workers_[worker].next > 0; }
  std::vector<std::uint64_t> steps() const;
  // Where a worker's data ended at another place when it was read again: data_loss, naming it.
  std::optional<Error> contradiction() const;

 private:
  struct Worker {
    std::uint64_t next = 0;       // step
    std::size_t open = 0;         // scheduled and not ended
    std::uint64_t run = 0;        // steps
    std::uint64_t run_bound = 0;  // above all numbers of steps that ran
    std::optional<std::uint64_t> end;
    std::optional<std::uint64_t> expected;  // elements
  };
  std::vector<Worker> workers_;
};

}  // namespace cohort::coordinator::internal
