// SPDX-License-Identifier: Apache-2.0
// The iterators of one worker, by resource id.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <unordered_map>
#include <vector>

#include "cohort/core/error.h"
#include "cohort/core/mutex.h"
#include "cohort/data/dataset.h"
#include "cohort/data/opened_files.h"
#include "cohort/data/program_supply.h"
#include "cohort/rpc/control.h"
#include "cohort/rpc/messages.h"

namespace cohort::server {

// A pipeline that runs, with the elements that peek() has returned and next() has not; or a
// per-worker value: the first element of a pipeline, which next() and peek() always return.
// Thread-safe.
class WorkerIterator {
 public:
  // If the pipeline cannot be built, or a value cannot be made, every use of it throws
  // failed_precondition with the cause closure_input. `ask` is called for the programs of elements
  // of other shapes, inside of next(), at() and peek(), which then wait for the program.
  WorkerIterator(const rpc::IteratorSpec& spec, const IterationOptions& options,
                 data::ProgramSupply::Ask ask);
  ~WorkerIterator() { end(); }
  WorkerIterator(const WorkerIterator&) = delete;
  WorkerIterator& operator=(const WorkerIterator&) = delete;

  // Throws the error with which every use of it fails, if there is one. Does not wait for a draw.
  void check_usable() const;
  // Throws out_of_range at the end, with the number of elements before it.
  Fields next();
  // The element of this number, counted from 0; nullopt at the end. If this element or a later one
  // was already taken, the pipeline is built again and read from its start, so its order must
  // always be the same. An error counts as an element. In an epoch a file that has changed
  // since it was read first ends the iterator: every later call throws that error (data_loss).
  std::optional<Fields> at(std::uint64_t position);
  // Up to `count` elements, which next() will return again. Returns fewer at the end, and before an
  // error, which next() will throw. Throws if the first one is an error, or has a field of strings.
  std::vector<Fields> peek(std::size_t count);
  // Takes the program, or the error, for which an element waits.
  void take(const rpc::ProgramReply& reply);
  // The files that it reads in an epoch. Null for other iterators, which begin at the start again.
  const std::shared_ptr<data::OpenedFiles>& files() const { return files_; }
  // Stops the pipeline, because its elements are not needed any more: filling buffers and waiting,
  // also for a program, ends, and all draws throw `cancelled`.
  void end() noexcept;

 private:
  void start() COHORT_REQUIRES(mutex_);
  void set_broken(const Error& error) COHORT_REQUIRES(mutex_);
  bool draw(Fields& fields) COHORT_REQUIRES(mutex_);
  void check_in_use() const;
  void check_files() COHORT_REQUIRES(mutex_);
  bool take(Fields& fields) COHORT_REQUIRES(mutex_);
  void throw_peeked_error() COHORT_REQUIRES(mutex_);

  Fields value() COHORT_REQUIRES(mutex_);

  const IterationOptions options_;
  const bool is_value_;
  const std::shared_ptr<data::OpenedFiles> files_;     // shared with the current pipeline
  const std::shared_ptr<data::ProgramSupply> supply_;  // shared with the current pipeline
  std::stop_source stop_;
  Mutex mutex_;  // held while an element is drawn
  std::optional<Dataset> dataset_ COHORT_GUARDED_BY(mutex_);
  std::unique_ptr<data::ElementSource> source_ COHORT_GUARDED_BY(mutex_);
  std::optional<Error> broken_;  // not changed after is_broken_ is set
  std::atomic<bool> is_broken_{false};
  std::optional<Fields> value_ COHORT_GUARDED_BY(mutex_);
  std::deque<Fields> peeked_ COHORT_GUARDED_BY(mutex_);
  std::optional<Error> peeked_error_ COHORT_GUARDED_BY(mutex_);  // in place of the next element
  std::uint64_t taken_ COHORT_GUARDED_BY(mutex_) = 0;  // elements and errors that were returned
};

// The iterators by id. Released iterators are cancelled and destroyed on their own threads, because
// a pipeline may be inside of a user's function that never returns. Thread-safe.
class IteratorTable {
 public:
  ~IteratorTable();
  void create(const rpc::IteratorSpec& spec, const IterationOptions& options,
              data::ProgramSupply::Ask ask = {});
  // Throws handle_lost if there is none with this id.
  std::shared_ptr<WorkerIterator> find(std::uint64_t id) const;
  // Calls `body` on its own thread, because an element may take any time. `body` must not throw.
  void use(std::uint64_t id, std::function<void(WorkerIterator& iterator)> body) const;
  // Ignores a reply for an iterator that was released.
  void take(const rpc::ProgramReply& reply) const;
  // Returns when these iterators have ended, or after half a second.
  void release(const std::vector<std::uint64_t>& ids);
  using Iterators = std::vector<std::shared_ptr<WorkerIterator>>;
  // Removes all iterators from the table. Pass them to let_go().
  Iterators take_all();
  // Ends them on another thread, without waiting. If the system has no thread left, this one ends
  // them and waits for their threads, so the caller must not hold a lock that these may need.
  static void let_go(Iterators iterators) noexcept;
  // Stops all iterators, so that every draw ends, but keeps them in the table.
  void cancel() const noexcept;
  // Releases all, and waits until all iterators of this process and the threads that use them have
  // ended. Returns false at the deadline.
  bool end(Deadline deadline) noexcept;
  // The number of releases in this process whose iterators have not ended yet, plus the number of
  // threads of use().
  static int left_behind() noexcept;

 private:
  mutable Mutex mutex_;
  std::unordered_map<std::uint64_t, std::shared_ptr<WorkerIterator>> iterators_
      COHORT_GUARDED_BY(mutex_);
};

}  // namespace cohort::server
