// SPDX-License-Identifier: Apache-2.0
// prefetch: a thread computes some elements ahead.
#include <atomic>
#include <chrono>
#include <deque>
#include <functional>
#include <stop_token>
#include <thread>

#include "cohort/core/mutex.h"
#include "cohort/core/spin.h"
#include "cohort/core/start_thread.h"
#include "cohort/data/graph/op_node.h"
#include "cohort/data/parallel/item.h"
#include "cohort/data/stages/stage_profiler.h"

namespace cohort::data {
namespace {

struct PrefetchAttributes {
  static constexpr std::string_view kOp = "prefetch";
  std::int64_t buffer_size = 0;
  static void describe(auto& visit, auto& all) {
    visit("buffer_size", all.buffer_size, AtLeast{-1, ">= -1 (-1: tuned, 0: none)"});
  }
};

constexpr std::int64_t kTunedElements = 8;  // for buffer_size -1
constexpr auto kAwake = std::chrono::microseconds(50);
constexpr int kWaitsToSleep = 16;

// At most so many bytes are computed ahead, whatever buffer_size is (but always one element).
constexpr std::size_t kBytesMax = 256 << 20;

// Owns its thread. While it runs, only it uses the input. Used from one thread at a time.
class PrefetchStage final : public Stage {
 public:
  // `cancellation` is the input's; the destructor cancels it.
  PrefetchStage(const Node& node, std::shared_ptr<Cancellation> cancellation,
                std::unique_ptr<Stage> input, std::size_t elements_max)
      : Stage(node),
        input_cancellation_(std::move(cancellation)),
        input_(std::move(input)),
        elements_max_(elements_max),
        wake_(input_cancellation_->token(), [this] { wake_all(); }) {}

  ~PrefetchStage() override {
    input_cancellation_->cancel();
    stop();
  }

  bool next(Fields& fields) override {
    check_cancelled();
    if (!thread_.joinable()) start();
    Item item;
    {
      const ScopedWait waiting;
      await_briefly();
      const Lock lock(mutex_);
      changed_.wait(mutex_, Deadline(), [this]() COHORT_REQUIRES(mutex_) {
        return !ready_.empty() || is_at_end_ || is_cancelled();
      });
      check_cancelled();
      if (ready_.empty()) return false;
      item = std::move(ready_.front());
      ready_.pop_front();
      has_news_ = !ready_.empty() || is_at_end_;
      bytes_ -= item.byte_count();
    }
    changed_.notify_all();
    fields = std::move(item).take();
    return true;
  }

  // Stops the thread and saves the ready elements and the input's position. The next call of next()
  // starts the thread again.
  void save(ByteWriter& writer) const override {
    stop();
    const Lock lock(mutex_);
    writer.u8(is_at_end_ ? 1 : 0);
    writer.varint(ready_.size());
    for (const Item& item : ready_) write_item(writer, item);
    input_->save(writer);
  }

  void restore(ByteReader& reader) override {
    stop();
    const Lock lock(mutex_);
    ready_.clear();
    bytes_ = 0;
    is_at_end_ = reader.u8() != 0;
    for (std::size_t left = reader.count(2); left > 0; --left) push(read_item(reader));
    has_news_ = !ready_.empty() || is_at_end_;
    input_->restore(reader);
  }

 private:
  void push(Item item) COHORT_REQUIRES(mutex_) {
    bytes_ += item.byte_count();
    ready_.push_back(std::move(item));
  }

  void start() {
    {
      const Lock lock(mutex_);
      must_stop_ = false;
      if (is_at_end_) return;
    }
    thread_ = start_thread("to prefetch elements", [this] { produce(); });
  }

  void wake_all() const {
    { const Lock lock(mutex_); }  // every thread that checked before the cancellation waits now
    changed_.notify_all();
  }

  void stop() const {
    {
      const Lock lock(mutex_);
      must_stop_ = true;
    }
    changed_.notify_all();
    if (thread_.joinable()) thread_.join();
  }

  // Waking takes longer than making a small batch. If nothing arrives while this thread spins, the
  // next kWaitsToSleep waits sleep at once.
  void await_briefly() {
    if (has_news_ || waits_to_sleep_-- > 0) return;
    waits_to_sleep_ = spin_for(kAwake, [this] { return has_news_.load(); }) ? 0 : kWaitsToSleep;
  }

  bool has_room() const COHORT_REQUIRES(mutex_) {
    return ready_.empty() || (ready_.size() < elements_max_ && bytes_ < kBytesMax);
  }

  bool is_cancelled() const { return input_cancellation_->is_cancelled(); }

  bool wait_for_room() {
    const Lock lock(mutex_);
    changed_.wait(mutex_, Deadline(), [this]() COHORT_REQUIRES(mutex_) {
      return must_stop_ || is_cancelled() || has_room();
    });
    return !must_stop_ && !is_cancelled();
  }

  void produce() {
    while (wait_for_room()) {
      Item item;
      bool has_item = true;
      try {
        has_item = input_->next(item.fields);
      } catch (...) {
        item.error = std::current_exception();
      }
      {
        const Lock lock(mutex_);
        if (has_item) push(std::move(item));
        is_at_end_ = !has_item;
        has_news_ = true;
      }
      changed_.notify_all();
      if (!has_item) return;
    }
  }

  const std::shared_ptr<Cancellation> input_cancellation_;
  std::unique_ptr<Stage> input_;
  std::size_t elements_max_;
  mutable Mutex mutex_;
  mutable Condition changed_;
  std::deque<Item> ready_ COHORT_GUARDED_BY(mutex_);
  std::size_t bytes_ COHORT_GUARDED_BY(mutex_) = 0;
  bool is_at_end_ COHORT_GUARDED_BY(mutex_) = false;
  std::atomic<bool> has_news_{false};  // an element or the end; written under the mutex
  int waits_to_sleep_ = 0;
  mutable bool must_stop_ COHORT_GUARDED_BY(mutex_) = false;
  mutable std::thread thread_;
  std::stop_callback<std::function<void()>> wake_;  // must be last: it uses the members above
};

class PrefetchNode final : public OpNode<PrefetchNode, PrefetchAttributes> {
 public:
  using OpNode::OpNode;

  std::int64_t cardinality() const override { return input().cardinality(); }
  Attributes identity() const override { return {}; }  // the buffer's size changes no element

  std::unique_ptr<Stage> make_stage(const StageContext& context) const override {
    if (context.purpose() != Purpose::run || given().buffer_size == 0)
      return input().start(context.input(0));
    const StageContext before = context.with_own_cancellation();
    std::unique_ptr<Stage> from = input().start(before.input(0));
    // Computing row numbers is cheaper than passing them between threads.
    if (from->rows() != nullptr) return from;
    const std::int64_t elements = given().buffer_size < 0 ? kTunedElements : given().buffer_size;
    return std::make_unique<PrefetchStage>(*this, before.cancellation(), std::move(from),
                                           static_cast<std::size_t>(elements));
  }
};

}  // namespace

NodePtr make_prefetch(SerializedOp op) { return PrefetchNode::read(op); }

}  // namespace cohort::data

namespace cohort {

Dataset Dataset::prefetch(std::int64_t buffer_size) const {
  return data::PrefetchNode::over(node_, {buffer_size});
}

}  // namespace cohort
