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

// A worker's steps are numbered 0, 1, …; the first one that finds no element is the worker's end.
// Several are scheduled ahead, so some steps after the end do nothing. Used only under its owner's
// lock.
class EpochProgress {
 public:
  explicit EpochProgress(std::size_t workers) : workers_(workers) {}
  std::size_t num_workers() const { return workers_.size(); }

  // The worker's first steps were made by another process.
  void begin_after(std::size_t worker, std::uint64_t steps) {
    workers_[worker].next = workers_[worker].run = workers_[worker].run_bound = steps;
  }
  // The cardinality of the worker's data: one more step than that is scheduled, to find the end.
  void expect(std::size_t worker, std::uint64_t elements) { workers_[worker].expected = elements; }
  // Whether another step should be scheduled if at most `open_max` may be open.
  bool wants_step(std::size_t worker, std::size_t open_max) const {
    const Worker& one = workers_[worker];
    const bool may_have_one = !one.expected || one.next <= std::max(*one.expected, one.run_bound);
    return !one.end && one.open < open_max && may_have_one;
  }
  bool knows_end(std::size_t worker) const {
    return workers_[worker].end || workers_[worker].expected;
  }
  // Whether this step will probably find no element.
  bool expects_end(std::size_t worker, std::uint64_t step) const {
    const Worker& one = workers_[worker];
    if (one.end) return step >= *one.end;
    return one.expected && step >= std::max(*one.expected, one.run_bound);
  }
  // Adds a step and returns its number.
  std::uint64_t add_step(std::size_t worker) {
    ++workers_[worker].open;
    return workers_[worker].next++;
  }
  void close_step(std::size_t worker) { --workers_[worker].open; }
  // The step ran with an element.
  void note_run(std::size_t worker, std::uint64_t step);
  // The step found no element.
  void note_end(std::size_t worker, std::uint64_t step);

  bool is_over() const;
  bool has_open() const;
  // Whether steps of the worker are missing or its end is not known.
  bool waits_for(std::size_t worker) const {
    return !workers_[worker].end || workers_[worker].open > 0;
  }
  // Whether a step of the worker was scheduled.
  bool has_begun(std::size_t worker) const { return workers_[worker].next > 0; }
  std::vector<std::uint64_t> steps() const;
  // Whether no step of the worker has run that comes after one that has not.
  bool is_without_gap(std::size_t worker) const {
    return workers_[worker].run == workers_[worker].run_bound;
  }
  // Returns data_loss, naming the worker, if a worker's data was read again and ended at a
  // different position.
  std::optional<Error> contradiction() const;

 private:
  struct Worker {
    std::uint64_t next = 0;       // step
    std::size_t open = 0;         // scheduled and not ended
    std::uint64_t run = 0;        // steps
    std::uint64_t run_bound = 0;  // one more than the largest number of a step that ran
    std::optional<std::uint64_t> end;
    std::optional<std::uint64_t> expected;  // elements
  };
  std::vector<Worker> workers_;
};

}  // namespace cohort::coordinator::internal
