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
#include <string>
#include <unordered_map>
#include <vector>

#include "cohort/core/error.h"
#include "cohort/core/mutex.h"
#include "cohort/data/dataset.h"
#include "cohort/data/files/opened_files.h"
#include "cohort/data/program_supply.h"
#include "cohort/rpc/control.h"
#include "cohort/rpc/messages.h"

namespace cohort::server {

// A running pipeline, with elements that were peeked at and not yet taken. Thread-safe.
class WorkerIterator {
 public:
  // A pipeline that cannot be built is kept as the error every use of it throws (closure_input).
  // `ask`: for programs for elements of other shapes, of next(), at() and peek(), which wait
  // meanwhile.
  WorkerIterator(const rpc::IteratorSpec& spec, const RunOptions& options,
                 data::ProgramSupply::Ask ask);
  ~WorkerIterator() { end(); }
  WorkerIterator(const WorkerIterator&) = delete;
  WorkerIterator& operator=(const WorkerIterator&) = delete;

  // Throws out_of_range at the end, with the number of elements before it.
  Fields next();
  // The element of this number, 0, 1, …; nullopt at the end. After an element that comes later, the
  // pipeline is built again and begins at its start; its order must then be the same. An error
  // takes the place of an element. In an epoch a file that has changed since it was read first ends
  // the iterator: every later call throws that error (data_loss).
  std::optional<Fields> at(std::uint64_t position);
  // Up to `count` elements, which next() will still give. Fewer at the end and before an error,
  // which next() throws then; throws where the first one is an error, or has a field of strings.
  std::vector<Fields> peek(std::size_t count);
  // What an element waits for.
  void take(const rpc::ProgramReply& reply);
  // The files that it reads. Null except in an epoch: another iterator begins at its start again.
  const std::shared_ptr<data::OpenedFiles>& files() const { return files_; }
  // Nobody wants an element any more: fills and waits of the pipeline stop, also those for a
  // program, and who draws gets `cancelled`, from then on.
  void end() noexcept;

 private:
  void start() COHORT_REQUIRES(mutex_);
  bool draw(Fields& fields) COHORT_REQUIRES(mutex_);
  void check_in_use() const;
  void check_files() COHORT_REQUIRES(mutex_);
  bool take(Fields& fields) COHORT_REQUIRES(mutex_);
  void throw_peeked_error() COHORT_REQUIRES(mutex_);

  const RunOptions options_;
  const std::shared_ptr<data::OpenedFiles> files_;     // also the pipelines'
  const std::shared_ptr<data::ProgramSupply> supply_;  // also the pipelines', one after the other
  std::stop_source stop_;
  Mutex mutex_;  // held while an element is drawn
  std::optional<Dataset> dataset_ COHORT_GUARDED_BY(mutex_);
  std::unique_ptr<ElementSource> source_ COHORT_GUARDED_BY(mutex_);
  std::optional<Error> broken_;
  std::deque<Fields> peeked_ COHORT_GUARDED_BY(mutex_);
  std::optional<Error> peeked_error_ COHORT_GUARDED_BY(mutex_);  // in the place of the next one
  std::uint64_t taken_ COHORT_GUARDED_BY(mutex_) = 0;  // elements and errors that callers have
};

// Iterators that nobody asks any more are cancelled and end on threads of their own: a pipeline's
// threads may be in a call of a user's function that takes for ever. Thread-safe.
class IteratorTable {
 public:
  ~IteratorTable();
  void create(const rpc::IteratorSpec& spec, const RunOptions& options,
              data::ProgramSupply::Ask ask = {});
  // handle_lost when there is none of that id.
  std::shared_ptr<WorkerIterator> find(std::uint64_t id) const;
  // Calls `body` on a thread of its own, since an element may take for ever; not when the table
  // ends before. `body` throws nothing.
  void use(std::uint64_t id, std::function<void(WorkerIterator& iterator)> body) const;
  // For an iterator of before, too, which is gone.
  void take(const rpc::ProgramReply& reply) const;
  // Returns when they have ended, or after a moment.
  void release(const std::vector<std::uint64_t>& ids);
  using Iterators = std::vector<std::shared_ptr<WorkerIterator>>;
  // Removes all from the table; for let_go().
  Iterators take_all();
  // Ends them without waiting; on this thread if the system has no other, which waits for their
  // threads: hold no lock that these may want.
  static void let_go(Iterators iterators) noexcept;
  // Ends the elements of all, for who waits for a draw to end before end() is called.
  void cancel() const noexcept;
  // Releases all and waits until all iterators of this process have ended, and the threads that
  // use them; false at the deadline.
  bool end(Deadline deadline) noexcept;
  // The iterators of this process that were released and have not ended, and the threads that use
  // one.
  static int left_behind() noexcept;
  std::size_t size() const;

 private:
  mutable Mutex mutex_;
  std::unordered_map<std::uint64_t, std::shared_ptr<WorkerIterator>> iterators_
      COHORT_GUARDED_BY(mutex_);
};

}  // namespace cohort::server
