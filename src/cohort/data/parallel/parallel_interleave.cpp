// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <vector>

#include "cohort/data/graph/flat_map_base.h"
#include "cohort/data/parallel/interleave_sources.h"
#include "cohort/data/parallel/item.h"
#include "cohort/data/parallel/work_threads.h"
#include "cohort/data/stages/stage_profiler.h"

namespace cohort::data {
namespace {

// A thread passes its elements on after this many elements or this much time.
constexpr std::size_t kElementsAtOnce = 16;
constexpr std::chrono::microseconds kTimeAtOnce(200);

// Yields the order of Interleave. Its threads read the input and the made datasets. Owns its
// threads. Used from one thread at a time.
class ParallelInterleave final : public Stage, private WorkThreads {
 public:
  // `context` has the cancellation of the input and of the made datasets; the destructor cancels
  // it.
  ParallelInterleave(const FlatMapBase& node, const StageContext& context,
                     const InterleaveOrder& order, const ParallelCallsOptions& calls)
      : Stage(node),
        WorkThreads("to interleave datasets", context.cancellation()->token()),
        input_cancellation_(context.cancellation()),
        threads_max_(static_cast<std::size_t>(calls.calls)),
        opener_(node, context),
        input_(node.input().start(context.input(0))),
        entry_(entry_of(node, context)),
        sources_({.order = order,
                  .is_deterministic = calls.is_deterministic,
                  .upcoming_max = threads_max_,
                  .on_room = [this] { room_.notify_one(); }}) {}

  ~ParallelInterleave() override {
    input_cancellation_->cancel();
    stop();
  }

  bool next(Fields& fields) override {
    check_cancelled();
    Item item;
    {
      const Lock lock(mutex_);
      if (!sources_.is_exhausted()) start(threads_max_, [this] { work(); });
      if (!take(item)) return false;
    }
    room_.notify_one();
    fields = std::move(item).take();
    return true;
  }

  void describe_position(Position& at) override {
    stop();
    const Lock lock(mutex_);
    sources_.describe_position(at, opener_);
    at(*input_);
  }

 private:
  using SourcePtr = InterleaveSources::SourcePtr;

  // Waits for the next element; false at the end.
  bool take(Item& item) COHORT_REQUIRES(mutex_) {
    while (true) {
      const InterleaveSources::Taken taken = sources_.take(item);
      if (taken != InterleaveSources::Taken::nothing_yet)
        return taken == InterleaveSources::Taken::element;
      const ScopedWait waiting;
      wait_to_take([this]() COHORT_REQUIRES(mutex_) { return sources_.can_take(); });
      check_cancelled();
    }
  }

  void work() {
    while (true) {
      SourcePtr source;
      {
        const Lock lock(mutex_);
        if (!wait_for_room([&]() COHORT_REQUIRES(mutex_) {
              source = sources_.wanted();
              return source || (!is_reading_ && sources_.wants_input());
            }))
          return;
        if (source) {
          sources_.begin_reading(*source);
        } else {
          is_reading_ = true;
        }
      }
      if (source) {
        read_elements(*source);
      } else {
        read_input();
      }
    }
  }

  void read_input() {
    auto source = std::make_shared<InterleaveSource>();
    bool has_element = true;
    try {
      has_element = input_->next(source->element);
    } catch (...) {
      source->fail();
    }
    {
      const Lock lock(mutex_);
      is_reading_ = false;
      if (has_element) {
        sources_.add(std::move(source));
      } else {
        sources_.end_input();
      }
    }
    ready_to_take_.notify_one();
    room_.notify_one();
  }

  void read_elements(InterleaveSource& source) {
    const ScopedWork working(entry_);
    std::vector<Item> items;
    bool is_open = source.dataset != nullptr;
    bool has_ended = false;
    try {
      if (!is_open) source.dataset = opener_.open(source.element, source.index);
      is_open = true;
      has_ended = !read_some(*source.dataset, items);
    } catch (...) {
      items.push_back({.error = std::current_exception()});
    }
    {
      const Lock lock(mutex_);
      source.has_failed = !is_open;
      source.is_ended = has_ended || !is_open;
      sources_.end_reading(source, std::move(items));
    }
    ready_to_take_.notify_one();
    room_.notify_one();
  }

  // Reads some elements; false at the end of the dataset. Throws an error after the elements before
  // it.
  static bool read_some(OpenDataset& dataset, std::vector<Item>& items) {
    const Deadline deadline = Deadline::after(kTimeAtOnce);
    do {
      Item item;
      if (!dataset.next(item.fields)) return false;
      items.push_back(std::move(item));
    } while (items.size() < kElementsAtOnce && !deadline.has_expired());
    return true;
  }

  const std::shared_ptr<Cancellation> input_cancellation_;
  std::size_t threads_max_;
  DatasetOpener opener_;
  std::unique_ptr<Stage> input_;  // used by the thread that reads it
  StageProfiler::Entry* entry_;
  InterleaveSources sources_ COHORT_GUARDED_BY(mutex_);
  bool is_reading_ COHORT_GUARDED_BY(mutex_) = false;
};

}  // namespace

std::unique_ptr<Stage> start_parallel_interleave(const FlatMapBase& node,
                                                 const StageContext& context,
                                                 const InterleaveOrder& order,
                                                 const ParallelCallsOptions& calls) {
  const auto most = static_cast<std::int64_t>(parallel_calls_max(context.dataset_options()));
  ParallelCallsOptions bounded = calls;
  if (calls.calls == kAutotune) bounded.calls = std::min(order.cycle_length, most);
  bounded.calls = std::min(bounded.calls, kThreadsMax);
  return std::make_unique<ParallelInterleave>(node, context.with_own_cancellation(), order,
                                              bounded);
}

}  // namespace cohort::data
