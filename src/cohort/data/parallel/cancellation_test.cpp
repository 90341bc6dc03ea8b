// SPDX-License-Identifier: Apache-2.0
// Cancels pipelines during operations that take long.
#include "cohort/data/parallel/cancellation.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/scalar_tensor.h>
#include <gmock/gmock.h>

#include <optional>
#include <thread>

#include "cohort/core/mutex.h"
#include "cohort/data/dataset.h"
#include "cohort/data/files/file_fixture.h"
#include "cohort/data/graph/dataset_op_suite.h"
#include "cohort/data/iterator.h"
#include "cohort/data/stages/stage.h"

namespace cohort::data {
namespace {

using ::testing::HasSubstr;

constexpr auto kLongEnough = std::chrono::seconds(60);
constexpr std::int64_t kMany = 1'000'000'000;

// Infinitely many numbers; counts how many were drawn. It gives up after a while, so that a
// pipeline that ignores its cancellation fails the test instead of hanging. Thread-safe.
class Endless {
 public:
  Dataset numbers() {
    return Dataset::from_generator(
        [this] {
          return [this](Nest& element) {
            element = Nest(at::scalar_tensor(note_draw(), at::kLong));
            return !patience_.has_expired();
          };
        },
        ElementSpec::tuple({{at::kLong, std::vector<std::int64_t>{}}}));
  }
  // Batches without rows.
  Dataset empty_batches() {
    return numbers().map([](at::Tensor) { return at::empty({0}, at::kLong); });
  }
  bool await_draws(std::int64_t count) {
    const Lock lock(mutex_);
    return changed_.wait(mutex_, patience_,
                         [&]() COHORT_REQUIRES(mutex_) { return drawn_ >= count; });
  }
  bool has_given_up() const { return patience_.has_expired(); }

 private:
  std::int64_t note_draw() {
    const Lock lock(mutex_);
    changed_.notify_all();
    return drawn_++;
  }

  const Deadline patience_ = Deadline::after(kLongEnough);
  Mutex mutex_;
  Condition changed_;
  std::int64_t drawn_ COHORT_GUARDED_BY(mutex_) = 0;
};

Iterator cancellable(const Dataset& dataset, const std::stop_source& stop) {
  return Iterator(cancellable_source(dataset, {}, stop.get_token()));
}

Dataset nothing_of(const Dataset& dataset) {
  return dataset.filter(Function([](at::Tensor x) { return x < 0; }));
}

struct LongOp {
  std::string name;
  std::function<Dataset(Endless&)> make;
};

void PrintTo(const LongOp& op, std::ostream* out) { *out << op.name; }

class CancelledOp : public ::testing::TestWithParam<LongOp> {};

std::string name_of_op(const ::testing::TestParamInfo<LongOp>& info) { return info.param.name; }

Dataset empties_of(Endless& endless, std::int64_t cycle_length) {
  return endless.numbers().interleave([](at::Tensor) { return Dataset::range(0); },
                                      {.cycle_length = cycle_length});
}

Dataset failing(Endless& endless) {
  return endless.numbers().map([](at::Tensor x) {
    COHORT_CHECK(x.item<std::int64_t>() < 0, ErrorCode::data_loss, "bad");
    return x;
  });
}

INSTANTIATE_TEST_SUITE_P(
    Ops, CancelledOp,
    ::testing::Values(
        LongOp{"Batch", [](Endless& e) { return e.numbers().batch(kMany); }},
        LongOp{"BatchOfErrors", [](Endless& e) { return failing(e).batch(kMany); }},
        LongOp{"BatchOfRows",
               [](Endless&) { return Dataset::range(kMany).shuffle(9).batch(kMany); }},
        LongOp{"Filter", [](Endless& e) { return nothing_of(e.numbers()); }},
        LongOp{"FlatMap",
               [](Endless& e) {
                 return e.numbers().flat_map([](at::Tensor) { return Dataset::range(0); });
               }},
        LongOp{"IgnoreErrors", [](Endless& e) { return failing(e).ignore_errors(); }},
        LongOp{"Interleave", [](Endless& e) { return empties_of(e, 3); }},
        LongOp{"PaddedBatch", [](Endless& e) { return e.numbers().padded_batch(kMany); }},
        LongOp{"Rebatch", [](Endless& e) { return e.empty_batches().rebatch({3}); }},
        LongOp{"Shard", [](Endless& e) { return e.numbers().shard(kMany, kMany - 1); }},
        LongOp{"Shuffle", [](Endless& e) { return e.numbers().shuffle(kMany); }},
        LongOp{"ShuffleOfRows", [](Endless&) { return Dataset::range(kMany).shuffle(kMany); }},
        LongOp{"Skip", [](Endless& e) { return e.numbers().skip(kMany); }},
        LongOp{"SkipOfRows", [](Endless&) { return Dataset::range(kMany).shuffle(9).skip(kMany); }},
        LongOp{"Unbatch", [](Endless& e) { return e.empty_batches().unbatch(); }}),
    name_of_op);

std::unique_ptr<Stage> stage_of(const Dataset& dataset, const std::stop_source& stop) {
  return dataset.node()->start(
      StageContext({.seed = 7, .data_dirs = std::nullopt}, Purpose::run, {}, stop.get_token()));
}

// Once a fill, a skip or a search continued to its end after the cancellation.
TEST_P(CancelledOp, StopsBeforeItHasWhatItWants) {
  Endless endless;
  std::stop_source stop;
  const std::unique_ptr<Stage> stage = stage_of(GetParam().make(endless), stop);
  stop.request_stop();
  Fields fields;
  const Error error = error_of([&] { stage->next(fields); });
  EXPECT_EQ(error.code(), ErrorCode::cancelled);
  EXPECT_THAT(error.message(), HasSubstr("got one that was cancelled"));
}

TEST(Cancellation, EndsASearchForAnotherElement) {
  Endless endless;
  std::stop_source stop;
  const auto one = [](at::Tensor) { return at::scalar_tensor(1, at::kLong); };
  const std::unique_ptr<Stage> stage = stage_of(endless.numbers().map(one).unique(), stop);
  Fields fields;
  EXPECT_TRUE(stage->next(fields));
  stop.request_stop();
  EXPECT_EQ(error_of([&] { stage->next(fields); }).code(), ErrorCode::cancelled);
}

// The same for a search through files.
TEST(Cancellation, EndsASearchThroughFilesWithoutRows) {
  const ScratchDirectory directory;
  const std::vector<std::string> names(1'000, directory.write("empty", ""));
  std::stop_source stop;
  const std::unique_ptr<Stage> stage = stage_of(Dataset::text_line(StringTensor(names)), stop);
  stop.request_stop();
  Fields fields;
  EXPECT_EQ(error_of([&] { stage->next(fields); }).code(), ErrorCode::cancelled);
}

// Pipelines whose threads fill a buffer without end.
std::vector<LongOp> threaded_ops() {
  const auto mapped = [](const Dataset& dataset, const Determinism& deterministic) {
    return dataset.map(Function([](at::Tensor x) { return x; }),
                       {.num_parallel_calls = 2,
                        .deterministic = deterministic,
                        .output_spec = ElementSpec::tuple({{at::kLong, {{}}}})});
  };
  const auto rows_without_end = [](Endless& e, InterleaveOptions options) {
    return Dataset::range(4).interleave([&e](at::Tensor) { return nothing_of(e.numbers()); },
                                        options);
  };
  return {
      {"Prefetch", [](Endless& e) { return e.numbers().shuffle(kMany).prefetch(2); }},
      {"TwoPrefetches",
       [](Endless& e) { return e.numbers().skip(kMany).prefetch(2).skip(1).prefetch(2); }},
      {"ParallelMap", [mapped](Endless& e) { return mapped(nothing_of(e.numbers()), {}); }},
      {"ParallelMapInAnyOrder",
       [mapped](Endless& e) { return mapped(nothing_of(e.numbers()), false); }},
      {"ParallelInterleave",
       [rows_without_end](Endless& e) {
         return rows_without_end(e, {.cycle_length = 2, .num_parallel_calls = 2});
       }},
      {"ParallelInterleaveInAnyOrder",
       [rows_without_end](Endless& e) {
         return rows_without_end(
             e, {.cycle_length = 2, .num_parallel_calls = 2, .deterministic = false});
       }},
  };
}

class CancelledThreads : public ::testing::TestWithParam<LongOp> {};

INSTANTIATE_TEST_SUITE_P(Ops, CancelledThreads, ::testing::ValuesIn(threaded_ops()), name_of_op);

TEST_P(CancelledThreads, WakeWhoWaitsForThem) {
  Endless endless;
  std::stop_source stop;
  Iterator iterator = cancellable(GetParam().make(endless), stop);
  std::optional<Error> error;
  std::thread reader([&] { error = error_of([&] { iterator.try_next(); }); });
  EXPECT_TRUE(endless.await_draws(100));
  stop.request_stop();
  reader.join();
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::cancelled);
  EXPECT_FALSE(endless.has_given_up());
  EXPECT_EQ(error_of([&] { iterator.try_next(); }).code(), ErrorCode::cancelled);
}

// Once the destructor of an iterator waited until its threads had filled their buffers.
TEST_P(CancelledThreads, EndWithTheirIterator) {
  Endless endless;
  const Dataset dataset = Dataset::range(1).concatenate(GetParam().make(endless)).prefetch(4);
  std::optional<Iterator> iterator = dataset.iterator();
  EXPECT_EQ(show(iterator->get_next()), "0");
  EXPECT_TRUE(endless.await_draws(100));
  iterator.reset();
  EXPECT_FALSE(endless.has_given_up());
}

// Blocks a call until the test opens the gate. Thread-safe.
class Gate {
 public:
  void pass() {
    const Lock lock(mutex_);
    has_arrived_ = true;
    changed_.notify_all();
    changed_.wait(mutex_, Deadline::after(kLongEnough),
                  [this]() COHORT_REQUIRES(mutex_) { return is_open_; });
  }
  bool await_arrival() {
    const Lock lock(mutex_);
    return changed_.wait(mutex_, Deadline::after(kLongEnough),
                         [this]() COHORT_REQUIRES(mutex_) { return has_arrived_; });
  }
  void open() {
    const Lock lock(mutex_);
    is_open_ = true;
    changed_.notify_all();
  }

 private:
  Mutex mutex_;
  Condition changed_;
  bool has_arrived_ COHORT_GUARDED_BY(mutex_) = false;
  bool is_open_ COHORT_GUARDED_BY(mutex_) = false;
};

TEST(Cancellation, DoesNotWaitForAUsersFunctionBeforeItWakesTheReader) {
  for (const std::int64_t parallel : {0, 2}) {
    Gate gate;
    std::stop_source stop;
    const auto held = [&gate](at::Tensor x) {
      gate.pass();
      return x;
    };
    MapOptions options{.num_parallel_calls = parallel};
    options.output_spec = ElementSpec::tuple({{at::kLong, std::vector<std::int64_t>{}}});
    Dataset dataset = Dataset::range(3).map(Function(held), std::move(options));
    if (parallel == 0) dataset = dataset.prefetch(1);
    Iterator iterator = cancellable(dataset, stop);
    std::optional<Error> error;
    std::thread reader([&] { error = error_of([&] { iterator.try_next(); }); });
    EXPECT_TRUE(gate.await_arrival());
    stop.request_stop();
    reader.join();
    gate.open();
    EXPECT_EQ(error->code(), ErrorCode::cancelled);
  }
}

TEST(Cancellation, EndsARunInWhichNothingWaits) {
  std::stop_source stop;
  Iterator iterator = cancellable(rows(5).batch(2), stop);
  EXPECT_EQ(show(iterator.get_next()), "[0, 1]");
  stop.request_stop();
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(error_of([&] { iterator.try_next(); }).code(), ErrorCode::cancelled);
  }
}

TEST(Cancellation, ReachesThoseBelowAlone) {
  std::stop_source stop;
  Cancellation pipeline(stop.get_token());
  Cancellation first(pipeline.token());
  Cancellation second(pipeline.token());
  first.cancel();
  EXPECT_TRUE(first.is_cancelled());
  EXPECT_FALSE(pipeline.is_cancelled());
  stop.request_stop();
  EXPECT_TRUE(pipeline.is_cancelled());
  EXPECT_TRUE(second.is_cancelled());
  EXPECT_TRUE(Cancellation(pipeline.token()).is_cancelled());
}

}  // namespace
}  // namespace cohort::data
