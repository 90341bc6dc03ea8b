// SPDX-License-Identifier: Apache-2.0
#include "cohort/data/parallel/parallel_calls.h"

#include <algorithm>
#include <deque>
#include <thread>

#include "cohort/data/parallel/degree_tuner.h"
#include "cohort/data/parallel/item.h"
#include "cohort/data/parallel/work_threads.h"
#include "cohort/data/stages/stage_profiler.h"

namespace cohort::data {
namespace {

// At most this many bytes of results are buffered, for any degree (but always one result).
constexpr std::size_t kBytesMax = 256 << 20;

// Owns its threads. One of them at a time reads the input; each calls the function for the element
// that it read. Used from one thread at a time.
class ParallelCalls final : public Stage, private WorkThreads {
 public:
  // `context` has the cancellation of the input; the destructor cancels it.
  ParallelCalls(const Node& node, const StageContext& context, ElementFunction function,
                const ParallelCallsOptions& options, std::size_t threads_max)
      : Stage(node),
        WorkThreads("to process elements in parallel", context.cancellation()->token()),
        input_cancellation_(context.cancellation()),
        input_(node.input().start(context.input(0))),
        entry_(entry_of(node, context)),
        function_(std::move(function)),
        options_(options),
        tuner_(threads_max) {}

  ~ParallelCalls() override {
    input_cancellation_->cancel();
    stop();
  }

  bool next(Fields& fields) override {
    check_cancelled();
    Item item;
    {
      const Lock lock(mutex_);
      if (!is_at_end_) start(degree(), [this] { work(); });  // more if the tuner raised the degree
      const bool has_to_wait = !can_take();
      if (has_to_wait) {
        const ScopedWait waiting;
        wait_to_take([this]() COHORT_REQUIRES(mutex_) { return can_take(); });
        check_cancelled();
      }
      if (calls_.empty()) return false;
      item = take();
      if (options_.calls == kAutotune) {
        tuner_.note_result(Clock::system().now(), has_to_wait);
      }
    }
    room_.notify_one();
    fields = std::move(item).take();
    return true;
  }

  // Waits for the running calls: their results are a part of the position. The next call of next()
  // starts the threads again.
  void describe_position(Position& at) override {
    stop();
    const Lock lock(mutex_);
    at(Fixed{options_.seed}, next_index_, is_at_end_);
    if (at.is_restored()) bytes_ = 0;
    at.list(calls_, 2, [&](std::shared_ptr<Call>& call) COHORT_REQUIRES(mutex_) {
      if (!at.is_restored()) return at(call->item);
      call = std::make_shared<Call>();
      at(call->item);
      finish(*call, std::move(call->item));
    });
    at(*input_);
  }

 private:
  struct Call {
    std::uint64_t index = 0;
    bool is_done = false;
    std::size_t bytes = 0;
    Item item;  // the call's own until it is done
  };

  std::size_t degree() const COHORT_REQUIRES(mutex_) {
    return options_.calls == kAutotune
               ? tuner_.degree()
               : static_cast<std::size_t>(std::min(options_.calls, kThreadsMax));
  }

  std::deque<std::shared_ptr<Call>>::const_iterator takeable() const COHORT_REQUIRES(mutex_) {
    if (options_.is_deterministic) {
      return !calls_.empty() && calls_.front()->is_done ? calls_.begin() : calls_.end();
    }
    return std::ranges::find_if(calls_, [](const auto& call) { return call->is_done; });
  }

  bool can_take() const COHORT_REQUIRES(mutex_) {
    return takeable() != calls_.end() || (is_at_end_ && calls_.empty());
  }

  Item take() COHORT_REQUIRES(mutex_) {
    const auto found = takeable();
    Item item = std::move((*found)->item);
    bytes_ -= (*found)->bytes;
    calls_.erase(found);
    return item;
  }

  void finish(Call& call, Item item) COHORT_REQUIRES(mutex_) {
    call.item = std::move(item);
    call.bytes = call.item.byte_count();
    call.is_done = true;
    bytes_ += call.bytes;
  }

  bool may_read() const COHORT_REQUIRES(mutex_) {
    return !is_reading_ && running_ < degree() &&
           (calls_.empty() || (calls_.size() < 2 * degree() && bytes_ < kBytesMax));
  }

  // Waits until this thread may read the input; false if it must end.
  bool wait_for_turn() {
    const Lock lock(mutex_);
    if (!wait_for_room([this]() COHORT_REQUIRES(mutex_) { return is_at_end_ || may_read(); }))
      return false;
    if (is_at_end_) return false;
    is_reading_ = true;
    ++running_;
    return true;
  }

  // Reads an element and lets another thread read; nullptr at the end.
  std::shared_ptr<Call> read() {
    auto call = std::make_shared<Call>();
    bool has_element = true;
    try {
      has_element = input_->next(call->item.fields);
    } catch (...) {
      call->item.error = std::current_exception();
    }
    const Lock lock(mutex_);
    is_reading_ = false;
    call->index = next_index_++;
    if (has_element) {
      calls_.push_back(call);
      room_.notify_one();
      return call;
    }
    is_at_end_ = true;
    --running_;
    room_.notify_all();
    ready_to_take_.notify_all();
    return nullptr;
  }

  void work() {
    while (wait_for_turn()) {
      const std::shared_ptr<Call> call = read();
      if (!call) return;
      Item item = std::move(call->item);
      try {
        const ScopedWork working(entry_);
        if (!item.error) function_(item.fields, call->index, options_.seed);
      } catch (...) {
        item = {.error = std::current_exception()};
      }
      {
        const Lock lock(mutex_);
        finish(*call, std::move(item));
        --running_;
      }
      ready_to_take_.notify_one();
      room_.notify_one();
    }
  }

  const std::shared_ptr<Cancellation> input_cancellation_;
  std::unique_ptr<Stage> input_;  // used by the thread that may read
  StageProfiler::Entry* entry_;
  ElementFunction function_;
  ParallelCallsOptions options_;
  std::deque<std::shared_ptr<Call>> calls_ COHORT_GUARDED_BY(mutex_);  // in the input's order
  std::uint64_t next_index_ COHORT_GUARDED_BY(mutex_) = 0;
  std::size_t bytes_ COHORT_GUARDED_BY(mutex_) = 0;  // of finished calls
  std::size_t running_ COHORT_GUARDED_BY(mutex_) = 0;
  bool is_reading_ COHORT_GUARDED_BY(mutex_) = false;
  bool is_at_end_ COHORT_GUARDED_BY(mutex_) = false;
  DegreeTuner tuner_ COHORT_GUARDED_BY(mutex_);
};

}  // namespace

std::size_t parallel_calls_max(const DatasetOptions& options) {
  std::int64_t most = std::max<std::int64_t>(1, std::thread::hardware_concurrency());
  if (options.private_threadpool_size.value_or(0) > 0) most = *options.private_threadpool_size;
  if (options.autotune_cpu_budget.value_or(0) > 0) {
    most = std::min(most, *options.autotune_cpu_budget);
  }
  return static_cast<std::size_t>(std::min(most, kThreadsMax));
}

std::unique_ptr<Stage> start_parallel_calls(const Node& node, const StageContext& context,
                                            ElementFunction function,
                                            const ParallelCallsOptions& options) {
  const std::size_t threads_max = parallel_calls_max(context.dataset_options());
  ParallelCallsOptions used = options;
  if (used.calls == kAutotune && !context.dataset_options().autotune.value_or(true))
    used.calls = static_cast<std::int64_t>(threads_max);
  return std::make_unique<ParallelCalls>(node, context.with_own_cancellation(), std::move(function),
                                         used, threads_max);
}

}  // namespace cohort::data
