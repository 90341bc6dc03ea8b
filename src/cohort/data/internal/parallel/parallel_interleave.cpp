// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <deque>
#include <functional>
#include <stop_token>
#include <thread>
#include <vector>

#include "cohort/core/detail/mutex.h"
#include "cohort/core/detail/start_thread.h"
#include "cohort/core/error.h"
#include "cohort/data/internal/flat_map_base.h"
#include "cohort/data/internal/nest_codec.h"
#include "cohort/data/internal/parallel/item.h"
#include "cohort/data/internal/parallel/parallel_calls.h"
#include "cohort/data/internal/stage_profiler.h"

namespace cohort::data {
namespace {

// Limits for reading ahead: in elements of each dataset, and in bytes of all datasets together (but
// one element is always read if next() waits for it).
constexpr std::int64_t kElementsMin = 16;
constexpr std::int64_t kElementsMax = 1024;
constexpr std::size_t kBytesMax = 256 << 20;
// A thread passes its elements on after this many elements or this much time.
constexpr std::size_t kElementsAtOnce = 16;
constexpr std::chrono::microseconds kTimeAtOnce(200);

// A made dataset and the elements that were read from it, or the error that replaces it.
struct Source {
  std::uint64_t index = 0;
  Fields element;
  std::unique_ptr<OpenDataset> dataset;  // used by the thread that is busy with it
  std::deque<Item> ready;
  bool is_busy = false;
  bool is_ended = false;    // no elements follow those in `ready`
  bool has_failed = false;  // it could not be opened: `ready` is the error, which uses up no turn
};

// Yields the order of Interleave: slots in turn, refilled with the datasets of `upcoming_`, which
// are in the input's order. Owns its threads. Used from one thread at a time.
class ParallelInterleave final : public Stage {
 public:
  // `context` has the cancellation of the input and of the made datasets; the destructor cancels
  // it.
  ParallelInterleave(const FlatMapBase& node, const StageContext& context,
                     const InterleaveOrder& order, const InterleaveCalls& calls)
      : Stage(node),
        input_cancellation_(context.cancellation()),
        order_(order),
        is_deterministic_(calls.is_deterministic),
        threads_max_(static_cast<std::size_t>(calls.calls)),
        elements_max_(
            static_cast<std::size_t>(std::clamp(order.block_length, kElementsMin, kElementsMax))),
        opener_(node, context),
        input_(node.input().start(context.input(0))),
        entry_(entry_of(node, context)),
        wake_(input_cancellation_->token(), [this] { wake_all(); }) {}

  ~ParallelInterleave() override {
    input_cancellation_->cancel();
    stop();
  }

  bool next(Fields& fields) override {
    check_cancelled();
    Item item;
    {
      const Lock lock(mutex_);
      start();
      if (!(is_deterministic_ ? take_in_order(item) : take_any(item))) return false;
      bytes_ -= item.byte_count();
    }
    room_.notify_one();
    fields = std::move(item).take();
    return true;
  }

  void save(ByteWriter& writer) const override {
    stop();
    const Lock lock(mutex_);
    writer.varint(next_index_);
    writer.u8(is_input_at_end_ ? 1 : 0);
    writer.varint(position_);
    writer.zigzag(taken_);
    for (const auto* sources : {&slots_, &upcoming_}) {
      writer.varint(sources->size());
      for (const auto& source : *sources) write_source(writer, source.get());
    }
    input_->save(writer);
  }

  void restore(ByteReader& reader) override {
    stop();
    const Lock lock(mutex_);
    next_index_ = reader.varint();
    is_input_at_end_ = reader.u8() != 0;
    position_ = reader.varint();
    taken_ = reader.zigzag();
    bytes_ = 0;
    for (auto* sources : {&slots_, &upcoming_}) {
      sources->clear();
      for (std::size_t left = reader.count(); left > 0; --left) {
        sources->push_back(read_source(reader));
      }
    }
    if (!order_.has_place(position_, slots_.size(), taken_) ||
        std::count(upcoming_.begin(), upcoming_.end(), nullptr) > 0) {
      reader.fail("a position in the cycle");
    }
    input_->restore(reader);
  }

 private:
  using SourcePtr = std::shared_ptr<Source>;  // shared with the thread that is busy with it
  using Sources = std::deque<SourcePtr>;

  std::size_t cycle_length() const { return static_cast<std::size_t>(order_.cycle_length); }

  // --- the consumer's side -----------------------------------------------------------------

  bool is_exhausted() const COHORT_REQUIRES(mutex_) {
    return is_input_at_end_ && upcoming_.empty() &&
           std::all_of(slots_.begin(), slots_.end(), [](const auto& slot) { return !slot; });
  }

  template <class Ready>
  void wait_until(Ready ready) COHORT_REQUIRES(mutex_) {
    if (ready()) return;
    const ScopedWait waiting;
    made_.wait(mutex_, Deadline(),
               [&]() COHORT_REQUIRES(mutex_) { return ready() || is_cancelled(); });
    check_cancelled();
  }

  void leave() COHORT_REQUIRES(mutex_) {
    taken_ = 0;
    const bool has_no_more = is_input_at_end_ && upcoming_.empty();
    const bool is_last =
        position_ + 1 == cycle_length() || (has_no_more && position_ + 1 >= slots_.size());
    position_ = is_last ? 0 : position_ + 1;
  }

  void take_from(SourcePtr& slot, Item& item) COHORT_REQUIRES(mutex_) {
    item = std::move(slot->ready.front());
    slot->ready.pop_front();
    if (slot->has_failed) slot.reset();
  }

  bool take_in_order(Item& item) COHORT_REQUIRES(mutex_) {
    while (!is_exhausted()) {
      if (position_ == slots_.size()) slots_.emplace_back();
      SourcePtr& slot = slots_[position_];
      if (!slot) {
        wait_until([this]()
                       COHORT_REQUIRES(mutex_) { return is_input_at_end_ || !upcoming_.empty(); });
        if (!refill(slot)) leave();
        continue;
      }
      wait_until([&slot] { return slot->is_ended || !slot->ready.empty(); });
      if (slot->ready.empty()) {
        slot.reset();
        leave();
        continue;
      }
      take_from(slot, item);
      if (!item.error && ++taken_ == order_.block_length) leave();
      return true;
    }
    return false;
  }

  // Also visits the slots in turn, but skips those without a ready element.
  bool take_any(Item& item) COHORT_REQUIRES(mutex_) {
    while (true) {
      open_free_slots();
      if (is_exhausted()) return false;
      for (std::size_t visits = slots_.size(); visits > 0; --visits) {
        if (position_ >= slots_.size()) position_ = 0;
        SourcePtr& slot = slots_[position_];
        if (slot && !slot->ready.empty()) {
          take_from(slot, item);
          if (++taken_ == order_.block_length) leave();
          return true;
        }
        leave();
      }
      wait_until([this]() COHORT_REQUIRES(mutex_) { return is_anything_new(); });
    }
  }

  void open_free_slots() COHORT_REQUIRES(mutex_) {
    for (SourcePtr& slot : slots_) {
      if (slot && slot->is_ended && slot->ready.empty()) slot.reset();
      if (!slot) refill(slot);
    }
    while (!upcoming_.empty() && slots_.size() < cycle_length()) {
      slots_.emplace_back();
      refill(slots_.back());
    }
  }

  bool is_anything_new() const COHORT_REQUIRES(mutex_) {
    std::size_t free = cycle_length() - slots_.size();
    for (const SourcePtr& slot : slots_) {
      if (!slot) {
        ++free;
      } else if (slot->is_ended || !slot->ready.empty()) {
        return true;
      }
    }
    return (free > 0 && !upcoming_.empty()) || is_exhausted();
  }

  bool refill(SourcePtr& slot) COHORT_REQUIRES(mutex_) {
    if (upcoming_.empty()) return false;
    slot = std::move(upcoming_.front());
    upcoming_.pop_front();
    room_.notify_one();
    return true;
  }

  // --- the threads' side -------------------------------------------------------------------

  void start() COHORT_REQUIRES(mutex_) {
    must_stop_ = false;
    while (!is_exhausted() && threads_.size() < threads_max_) {
      threads_.push_back(start_thread("to interleave datasets", [this] { work(); }));
    }
  }

  bool is_cancelled() const { return input_cancellation_->is_cancelled(); }

  void wake_all() const {
    { const Lock lock(mutex_); }  // every thread that checked before the cancellation waits now
    room_.notify_all();
    made_.notify_all();
  }

  void stop() const {
    {
      const Lock lock(mutex_);
      must_stop_ = true;
    }
    room_.notify_all();
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }

  bool wants_elements(const Source& source, bool is_in_slot) const COHORT_REQUIRES(mutex_) {
    if (source.is_busy || source.is_ended) return false;
    if (source.ready.empty() && is_in_slot) return true;
    return source.ready.size() < elements_max_ && bytes_ < kBytesMax;
  }

  bool may_read_input() const COHORT_REQUIRES(mutex_) {
    return !is_reading_ && !is_input_at_end_ && upcoming_.size() < threads_max_;
  }

  // Returns the source whose elements are needed first, among those that no thread is busy with.
  SourcePtr wanted_source() const COHORT_REQUIRES(mutex_) {
    for (std::size_t i = 0; i < slots_.size(); ++i) {
      const SourcePtr& slot = slots_[(position_ + i) % slots_.size()];
      if (slot && wants_elements(*slot, true)) return slot;
    }
    for (const SourcePtr& source : upcoming_) {
      if (wants_elements(*source, false)) return source;
    }
    return nullptr;
  }

  void work() {
    while (true) {
      SourcePtr source;
      {
        const Lock lock(mutex_);
        room_.wait(mutex_, Deadline(), [&]() COHORT_REQUIRES(mutex_) {
          const bool must_stop = must_stop_ || is_cancelled();
          source = must_stop ? nullptr : wanted_source();
          return must_stop || source || may_read_input();
        });
        if (must_stop_ || is_cancelled()) return;
        if (source) {
          source->is_busy = true;
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
    auto source = std::make_shared<Source>();
    bool has_element = true;
    try {
      has_element = input_->next(source->element);
    } catch (...) {
      fail(*source);
    }
    {
      const Lock lock(mutex_);
      source->index = next_index_++;
      is_reading_ = false;
      is_input_at_end_ = !has_element;
      if (has_element) upcoming_.push_back(std::move(source));
    }
    made_.notify_one();
    room_.notify_one();
  }

  static void fail(Source& source) {
    source.ready.push_back({.error = std::current_exception()});
    source.has_failed = true;
    source.is_ended = true;
  }

  void read_elements(Source& source) {
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
      source.is_busy = false;
      source.has_failed = !is_open;
      source.is_ended = has_ended || !is_open;
      for (Item& item : items) {
        bytes_ += item.byte_count();
        source.ready.push_back(std::move(item));
      }
    }
    made_.notify_one();
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

  // --- positions ---------------------------------------------------------------------------

  static void write_source(ByteWriter& writer, const Source* source) {
    writer.u8(source != nullptr ? 1 : 0);
    if (source == nullptr) return;
    writer.varint(source->index);
    write_fields(writer, source->element);
    writer.u8(source->has_failed ? 1 : 0);
    writer.u8(source->is_ended ? 1 : 0);
    writer.varint(source->ready.size());
    for (const Item& item : source->ready) write_item(writer, item);
    const bool is_running = source->dataset && !source->is_ended;
    writer.u8(is_running ? 1 : 0);
    if (is_running) source->dataset->save(writer);
  }

  SourcePtr read_source(ByteReader& reader) COHORT_REQUIRES(mutex_) {
    if (reader.u8() == 0) return nullptr;
    auto source = std::make_shared<Source>();
    source->index = reader.varint();
    source->element = read_fields(reader);
    source->has_failed = reader.u8() != 0;
    source->is_ended = reader.u8() != 0;
    for (std::size_t left = reader.count(2); left > 0; --left) {
      source->ready.push_back(read_item(reader));
      bytes_ += source->ready.back().byte_count();
    }
    if (source->has_failed && source->ready.size() != 1) reader.fail("one error");
    if (reader.u8() != 0) {
      source->dataset = opener_.open(source->element, source->index);
      source->dataset->restore(reader);
    }
    return source;
  }

  const std::shared_ptr<Cancellation> input_cancellation_;
  InterleaveOrder order_;
  bool is_deterministic_;
  std::size_t threads_max_;
  std::size_t elements_max_;
  DatasetOpener opener_;
  std::unique_ptr<Stage> input_;  // used by the thread that reads it
  StageProfiler::Entry* entry_;
  mutable Mutex mutex_;
  mutable Condition room_;  // for the threads
  mutable Condition made_;  // for next()
  Sources slots_ COHORT_GUARDED_BY(mutex_);
  Sources upcoming_ COHORT_GUARDED_BY(mutex_);
  std::uint64_t position_ COHORT_GUARDED_BY(mutex_) = 0;
  std::int64_t taken_ COHORT_GUARDED_BY(mutex_) = 0;  // in this turn
  std::uint64_t next_index_ COHORT_GUARDED_BY(mutex_) = 0;
  std::size_t bytes_ COHORT_GUARDED_BY(mutex_) = 0;  // of all ready elements
  bool is_reading_ COHORT_GUARDED_BY(mutex_) = false;
  bool is_input_at_end_ COHORT_GUARDED_BY(mutex_) = false;
  mutable bool must_stop_ COHORT_GUARDED_BY(mutex_) = false;
  mutable std::vector<std::thread> threads_;
  std::stop_callback<std::function<void()>> wake_;  // must be last: it uses the members above
};

}  // namespace

std::unique_ptr<Stage> start_parallel_interleave(const FlatMapBase& node,
                                                 const StageContext& context,
                                                 const InterleaveOrder& order,
                                                 const InterleaveCalls& calls) {
  const auto most = static_cast<std::int64_t>(parallel_calls_max(context.dataset_options()));
  InterleaveCalls bounded = calls;
  if (calls.calls == kAutotune) bounded.calls = std::min(order.cycle_length, most);
  bounded.calls = std::min(bounded.calls, kThreadsMax);
  return std::make_unique<ParallelInterleave>(node, context.with_own_cancellation(), order,
                                              bounded);
}

}  // namespace cohort::data
