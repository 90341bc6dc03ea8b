// SPDX-License-Identifier: Apache-2.0
// A thread that makes the next elements of a source while its consumer is busy, and sources for it.
#pragma once

#include <atomic>
#include <cstddef>
#include <deque>
#include <limits>
#include <optional>
#include <stop_token>

#include "cohort/data/iterator.h"
#include "cohort/data/parallel/item.h"
#include "cohort/data/parallel/work_threads.h"

namespace cohort::data {

// How far ahead the thread reads (but always one element).
struct AheadLimits {
  std::size_t elements = 0;  // 0: there is no thread
  std::size_t bytes = std::numeric_limits<std::size_t>::max();
};

// Owns its thread, which alone uses the source while it runs. Used from one thread at a time.
class AheadReader : private WorkThreads {
 public:
  // `purpose` as in start_thread(). The source must stop with `cancelled`, and outlive this.
  AheadReader(std::string_view purpose, ElementSource& source, std::stop_token cancelled,
              AheadLimits limits)
      : WorkThreads(purpose, std::move(cancelled)), source_(source), limits_(limits) {}
  ~AheadReader() { stop(); }
  AheadReader(const AheadReader&) = delete;
  AheadReader& operator=(const AheadReader&) = delete;

  // The next element, or the error in its place. nullopt at the end, and after a cancellation.
  std::optional<Item> take();
  // Whether the source has ended; only elements that were made ahead are left. Stops the thread, as
  // the two below do; take() starts it again.
  bool is_at_end() const;
  // The elements that were made ahead, then the position of the source.
  void save(ByteWriter& writer) const;
  void restore(ByteReader& reader, bool is_at_end);

 private:
  void await_briefly();
  void push(Item item) COHORT_REQUIRES(mutex_);
  bool read();
  bool wait_for_room();

  ElementSource& source_;
  const AheadLimits limits_;
  std::deque<Item> ready_ COHORT_GUARDED_BY(mutex_);
  std::size_t bytes_ COHORT_GUARDED_BY(mutex_) = 0;
  bool is_at_end_ COHORT_GUARDED_BY(mutex_) = false;
  std::atomic<bool> has_news_{false};  // an element or the end; written under the mutex
  int waits_to_sleep_ = 0;
};

// Like cancellable_source(), for a pipeline that a thread of the library runs. C++ functions draw
// random numbers from generators of their own, since which ones they got of LibTorch's default
// generator would depend on the timing.
COHORT_API std::unique_ptr<ElementSource> source_ahead(const Dataset& dataset,
                                                       const IterationOptions& options,
                                                       std::stop_token stop);

}  // namespace cohort::data
