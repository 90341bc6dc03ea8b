// SPDX-License-Identifier: Apache-2.0
#include "cohort/data/stages/stage_profiler.h"

#include <chrono>
#include <optional>

#include "cohort/data/stages/stage.h"

namespace cohort::data {
namespace {

std::int64_t nanoseconds_since(TimePoint start, const Clock& clock) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(clock.now() - start).count();
}

// One call of a stage. Calls nest as the stages of a thread do; each excludes the time of inner
// calls from its own time. Used only from its thread.
class Call {
 public:
  explicit Call(StageProfiler::Entry& entry)
      : entry_(entry), around_(innermost_), start_(entry.clock.now()) {
    innermost_ = this;
  }

  ~Call() {
    const std::int64_t taken = nanoseconds_since(start_, entry_.clock);
    entry_.nanoseconds.fetch_add(taken, std::memory_order_relaxed);
    entry_.own_nanoseconds.fetch_add(taken - others_, std::memory_order_relaxed);
    innermost_ = around_;
    add_others(taken);
  }

  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  static void add_others(std::int64_t nanoseconds) {
    if (innermost_ != nullptr) innermost_->others_ += nanoseconds;
  }
  // The clock of the innermost call of this thread; nullptr if there is none.
  static const Clock* clock() {
    return innermost_ != nullptr ? &innermost_->entry_.clock : nullptr;
  }

 private:
  static thread_local Call* innermost_;

  StageProfiler::Entry& entry_;
  Call* around_;
  std::int64_t others_ = 0;  // in inner calls, and waiting
  TimePoint start_;
};

thread_local Call* Call::innermost_ = nullptr;

// Calls draw() as one call of a stage, and counts the elements of which it returns the number.
template <class Draw>
auto counted(StageProfiler::Entry& entry, Draw draw) {
  const Call call(entry);
  const auto got = draw();
  entry.elements.fetch_add(static_cast<std::int64_t>(got), std::memory_order_relaxed);
  return got;
}

class MeasuredRows final : public RowStream {
 public:
  MeasuredRows(RowStream& rows, StageProfiler::Entry& entry) : rows_(rows), entry_(entry) {}

  const RowStore& store() const override { return rows_.store(); }

  std::size_t next_rows(std::span<std::int64_t> rows) override {
    return counted(entry_, [&] { return rows_.next_rows(rows); });
  }

  std::optional<std::int64_t> rows_left() const override { return rows_.rows_left(); }

  std::size_t skip_rows(std::size_t count) override {
    return counted(entry_, [&] { return rows_.skip_rows(count); });
  }

 private:
  RowStream& rows_;
  StageProfiler::Entry& entry_;
};

class MeasuredStage final : public Stage {
 public:
  MeasuredStage(const Node& node, std::unique_ptr<Stage> stage,
                std::shared_ptr<StageProfiler> profiler, StageProfiler::Entry& entry)
      : Stage(node), profiler_(std::move(profiler)), entry_(entry), stage_(std::move(stage)) {
    if (stage_->rows() != nullptr) rows_.emplace(*stage_->rows(), entry_);
  }

  bool next(Fields& fields) override {
    return counted(entry_, [&] { return stage_->next(fields); });
  }

  Stage* batch_source() override { return stage_.get(); }

  std::int64_t next_batch(std::int64_t count, Fields& batch) override {
    return counted(entry_, [&] { return stage_->next_batch(count, batch); });
  }

  std::int64_t skip(std::int64_t count) override {
    return counted(entry_, [&] { return stage_->skip(count); });
  }

  RowStream* rows() override { return rows_ ? &*rows_ : nullptr; }
  void describe_position(Position& at) override { at(*stage_); }
  std::vector<StageStats> stats() const override { return profiler_->stats(); }

 private:
  std::shared_ptr<StageProfiler> profiler_;
  StageProfiler::Entry& entry_;
  std::unique_ptr<Stage> stage_;
  std::optional<MeasuredRows> rows_;
};

}  // namespace

StageProfiler::Entry& StageProfiler::entry(const std::string& place, std::string_view op) {
  const Lock lock(mutex_);
  std::unique_ptr<Entry>& entry = entries_[{place, std::string(op)}];
  if (!entry) entry = std::make_unique<Entry>(*clock_);
  return *entry;
}

void StageProfiler::measure_with(const Clock& clock) {
  const Lock lock(mutex_);
  clock_ = &clock;
}

std::vector<StageStats> StageProfiler::stats() const {
  constexpr double kSecond = 1e9;
  const Lock lock(mutex_);
  std::vector<StageStats> all;
  for (const auto& [key, entry] : entries_) {
    all.push_back({.op = key.second,
                   .place = key.first,
                   .elements = entry->elements,
                   .seconds = static_cast<double>(entry->nanoseconds) / kSecond,
                   .seconds_exclusive = static_cast<double>(entry->own_nanoseconds) / kSecond});
  }
  return all;
}

std::unique_ptr<Stage> measured(std::unique_ptr<Stage> stage, const Node& node,
                                const StageContext& context) {
  return std::make_unique<MeasuredStage>(node, std::move(stage), context.profiler(),
                                         *entry_of(node, context));
}

StageProfiler::Entry* entry_of(const Node& node, const StageContext& context) {
  return context.profiler() ? &context.profiler()->entry(context.place(), node.op()) : nullptr;
}

ScopedWork::ScopedWork(StageProfiler::Entry* entry) : entry_(entry) {
  if (entry_ != nullptr) start_ = entry_->clock.now();
}

ScopedWork::~ScopedWork() {
  if (entry_ == nullptr) return;
  entry_->own_nanoseconds.fetch_add(nanoseconds_since(start_, entry_->clock),
                                    std::memory_order_relaxed);
}

ScopedWait::ScopedWait() : clock_(Call::clock()) {
  if (clock_ != nullptr) start_ = clock_->now();
}

ScopedWait::~ScopedWait() {
  if (clock_ != nullptr) Call::add_others(nanoseconds_since(start_, *clock_));
}

}  // namespace cohort::data
