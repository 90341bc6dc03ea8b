// SPDX-License-Identifier: Apache-2.0
#include "cohort/data/iterator.h"

#include <ATen/TensorOperators.h>
#include <gmock/gmock.h>

#include <barrier>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "cohort/core/clock.h"
#include "cohort/data/graph/dataset_op_suite.h"
#include "cohort/data/stages/stage.h"
#include "cohort/data/stages/stage_profiler.h"

namespace cohort::data {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Dataset squares() {
  return Dataset::range(7, {.start = 1}).map([](at::Tensor x) { return x * x; }).batch(2);
}

std::vector<std::string> read(Iterator& iterator, std::size_t count) {
  return drain(iterator, count);
}

TEST(IteratorPosition, IsGoneBackTo) {
  Iterator iterator = squares().iterator();
  EXPECT_THAT(read(iterator, 1), ElementsAre("[1, 4]"));
  const Bytes position = iterator.save();
  EXPECT_THAT(read(iterator, 2), ElementsAre("[9, 16]", "[25, 36]"));
  for (int i = 0; i < 2; ++i) {
    iterator.restore(position);
    EXPECT_THAT(drain(iterator), ElementsAre("[9, 16]", "[25, 36]"));
  }
}

TEST(IteratorPosition, MayBeTheEnd) {
  Iterator iterator = rows(3).iterator();
  drain(iterator);
  Iterator other = rows(3).iterator();
  other.restore(iterator.save());
  EXPECT_FALSE(other.try_next().has_value());
}

TEST(IteratorPosition, IsTakenUpByIteratorsOfTheSamePipeline) {
  const Dataset dataset = rows(10);
  Bytes position = dataset.iterator().save();
  std::vector<std::string> all;
  for (int loop = 0; loop < 5; ++loop) {
    Iterator iterator = rows(10).iterator();
    iterator.restore(position);
    for (const std::string& element : read(iterator, 2)) all.push_back(element);
    position = iterator.save();
  }
  EXPECT_THAT(all, ElementsAre("0", "1", "2", "3", "4", "5", "6", "7", "8", "9"));
}

TEST(IteratorPosition, IsExactInTheMiddleOfAShuffleAndAPrefetch) {
  const auto make = [] {
    return rows(40)
        .map([](at::Tensor x) { return x; })
        .prefetch(5)
        .shuffle(10, {.seed = 10, .reshuffle_each_iteration = false})
        .filter([](at::Tensor x) { return x % 3 != 0; })
        .enumerate()
        .batch(3)
        .unbatch();
  };
  const std::vector<std::string> whole = elements_of(make());
  for (std::size_t taken = 0; taken <= whole.size(); ++taken) {
    Iterator first = make().iterator();
    std::vector<std::string> all = read(first, taken);
    Iterator second = make().iterator();
    second.restore(first.save());
    for (const std::string& element : drain(second)) all.push_back(element);
    EXPECT_EQ(all, whole) << "after " << taken;
  }
}

TEST(IteratorPosition, IsRefusedByAnotherPipeline) {
  const Bytes position = rows(4).take(3).iterator().save();
  Iterator other = rows(4).skip(1).iterator();
  const Error error = error_of([&] { other.restore(position); });
  EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
  EXPECT_THAT(
      error.message(),
      HasSubstr("expected a position in the pipeline 'range skip', got one in 'range take'"));
}

TEST(IteratorPosition, IsRefusedWhereTheElementsDiffer) {
  const Bytes position = rows(4).iterator().save();
  Iterator other = Dataset::range(4, {.dtype = at::kFloat}).iterator();
  EXPECT_THAT(error_of([&] { other.restore(position); }).message(),
              HasSubstr("in a dataset of float32[], got one of int64[]"));
}

TEST(IteratorPosition, IsDataLossWhereItsBytesAreCut) {
  Bytes position = rows(4).take(3).iterator().save();
  position.pop_back();
  Iterator iterator = rows(4).take(3).iterator();
  EXPECT_EQ(error_of([&] { iterator.restore(position); }).code(), ErrorCode::data_loss);
}

// A part of a position would lead to other elements than those that come next.
TEST(IteratorPosition, ThatIsRestoredInPartIsNotUsed) {
  const auto make = [] {
    return rows(6)
        .interleave([](at::Tensor) { return rows(3); }, {.cycle_length = 2})
        .shard(2, 1)
        .shuffle(3, {.seed = 1});
  };
  Iterator whole = make().iterator();
  whole.try_next();
  const Bytes position = whole.save();
  std::size_t refused = 0;
  for (std::size_t size = 0; size < position.size(); ++size) {
    Iterator iterator = make().iterator();
    const auto code = [](auto&& call) { return error_of(call).code(); };
    const std::span<const std::byte> cut = std::span(position).first(size);
    ASSERT_EQ(code([&] { iterator.restore(cut); }), ErrorCode::data_loss);
    try {
      iterator.try_next();  // if the cut is in the name of the pipeline, it is at the start
    } catch (const Error& error) {
      ++refused;
      EXPECT_EQ(error.code(), ErrorCode::failed_precondition) << error.what();
      EXPECT_EQ(code([&] { iterator.save(); }), ErrorCode::failed_precondition);
      EXPECT_EQ(code([&] { iterator.restore(position); }), ErrorCode::failed_precondition);
    }
  }
  EXPECT_GT(refused, position.size() / 4);
}

class IteratorStats : public ::testing::Test {
 protected:
  static Iterator measured(const Dataset& dataset) {
    return dataset.iterator({.collect_stats = true});
  }
  static std::vector<std::string> counts(const Iterator& iterator) {
    std::vector<std::string> all;
    for (const StageStats& stage : iterator.stats()) {
      all.push_back(stage.place + " " + stage.op + " " + std::to_string(stage.elements));
    }
    return all;
  }
};

TEST_F(IteratorStats, CountTheElementsOfEachOp) {
  Iterator iterator = measured(tensors(6).shuffle(3).batch(2).map([](at::Tensor x) { return x; }));
  drain(iterator);
  EXPECT_THAT(counts(iterator), ElementsAre("/ map 3", "/0 batch 3", "/0/0 shuffle 6",
                                            "/0/0/0 map 6", "/0/0/0/0 range 6"));
}

TEST_F(IteratorStats, CountRowsAndEpochs) {
  Iterator iterator = measured(rows(4).shard(2, 0).repeat(3).batch(4));
  EXPECT_THAT(drain(iterator), ElementsAre("[0, 2, 0, 2]", "[0, 2]"));
  EXPECT_THAT(counts(iterator),
              ElementsAre("/ batch 2", "/0 repeat 6", "/0/0 shard 6", "/0/0/0 range 12"));
}

TEST_F(IteratorStats, TellInputsApart) {
  Iterator iterator = measured(tensors(2).concatenate(rows(1)));
  drain(iterator);
  EXPECT_THAT(counts(iterator),
              ElementsAre("/ concatenate 3", "/0 map 2", "/0/0 range 2", "/1 range 1"));
}

TEST_F(IteratorStats, AreNoneWhereNotAsked) {
  Iterator iterator = rows(3).iterator();
  drain(iterator);
  EXPECT_TRUE(iterator.stats().empty());
  EXPECT_EQ(iterator.bottleneck(), "");
}

TEST_F(IteratorStats, KeepTimesOfTheirOwnApart) {
  Iterator iterator = measured(tensors(50).shuffle(9).batch(8));
  drain(iterator);
  double own = 0;
  const std::vector<StageStats> stats = iterator.stats();
  for (const StageStats& stage : stats) {
    EXPECT_GE(stage.seconds_exclusive, 0);
    EXPECT_GE(stage.seconds, stage.seconds_exclusive);
    own += stage.seconds_exclusive;
  }
  EXPECT_NEAR(own, stats[0].seconds, 1e-6);
}

// Time that passes only where a test says so, so that a busy machine changes no measurement. Notes
// how often the thread that made it, which reads the elements, has asked for the time. Thread-safe.
class StageClock final : public Clock {
 public:
  TimePoint now() const override {
    const std::lock_guard lock(mutex_);
    if (std::this_thread::get_id() == reader_) ++asked_;
    changed_.notify_all();
    return now_;
  }
  bool wait_until(std::unique_lock<std::mutex>&, std::condition_variable&, TimePoint,
                  const std::function<bool()>& ready) override {
    return ready();
  }
  void advance(Duration duration) {
    const std::lock_guard lock(mutex_);
    now_ += duration;
  }
  // Until the reader waits for an element: it begins a call of two stages, and then its wait.
  // Returns false after 20 s.
  bool await_waiting_reader() const {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(20), [this] { return asked_ >= 3; });
  }

 private:
  const std::thread::id reader_ = std::this_thread::get_id();
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  mutable int asked_ = 0;
  TimePoint now_{std::chrono::seconds(1000)};
};

class IteratorTimes : public IteratorStats {
 protected:
  // Runs the dataset on the clock.
  Iterator started(const Dataset& dataset) {
    const StageContext context({.collect_stats = true}, Purpose::run, dataset.options());
    context.profiler()->measure_with(clock_);
    return Iterator(dataset.node()->start(context));
  }
  static std::vector<std::string> own_seconds(const Iterator& iterator) {
    std::vector<std::string> all;
    for (const StageStats& stage : iterator.stats())
      all.push_back(stage.op + " " + std::to_string(std::lround(stage.seconds_exclusive * 10)));
    return all;
  }

  const MapOptions number_{.output_spec = ElementSpec::tuple({{at::kLong, {{}}}})};
  StageClock clock_;
};

// A second passes in this stage, none in the others, and prefetch waits.
TEST_F(IteratorTimes, NameTheStageThatTakesMost) {
  const auto busy = [this](at::Tensor x) {
    EXPECT_TRUE(clock_.await_waiting_reader());
    clock_.advance(std::chrono::seconds(1));
    return x;
  };
  Iterator iterator = started(rows(1).map(busy, number_).prefetch(1).batch(2));
  EXPECT_THAT(drain(iterator), ElementsAre("[0]"));
  EXPECT_EQ(iterator.bottleneck(), "map at /0/0");
  EXPECT_THAT(own_seconds(iterator), ElementsAre("batch 0", "prefetch 0", "map 10", "range 0"));
  EXPECT_NEAR(iterator.stats()[0].seconds, 1, 1e-6);  // batch has waited for it
}

// The same second passes in two threads of the stage.
TEST_F(IteratorTimes, AddTheWorkOfOtherThreads) {
  std::barrier both(2);
  const auto busy = [&](at::Tensor x) {
    both.arrive_and_wait();
    if (x.item<std::int64_t>() == 0) {
      EXPECT_TRUE(clock_.await_waiting_reader());
      clock_.advance(std::chrono::seconds(1));
    }
    both.arrive_and_wait();
    return x;
  };
  MapOptions options = number_;
  options.num_parallel_calls = 2;
  Iterator iterator = started(rows(2).map(busy, options).batch(2));
  EXPECT_THAT(drain(iterator), ElementsAre("[0, 1]"));
  EXPECT_EQ(iterator.bottleneck(), "map at /0");
  EXPECT_THAT(own_seconds(iterator), ElementsAre("batch 0", "map 20", "range 0"));
}

TEST_F(IteratorStats, LeaveElementsAndPositionsAlone) {
  const Dataset dataset =
      rows(9).shuffle(4, {.seed = 2, .reshuffle_each_iteration = false}).batch(2);
  Iterator watched = measured(dataset);
  EXPECT_EQ(drain(watched, 2), elements_of(dataset, 2));
  Iterator plain = dataset.iterator();
  plain.restore(watched.save());
  EXPECT_EQ(drain(plain), drain(watched));
}

}  // namespace
}  // namespace cohort::data
