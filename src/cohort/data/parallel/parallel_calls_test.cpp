// SPDX-License-Identifier: Apache-2.0
#include "cohort/data/parallel/parallel_calls.h"

#include <ATen/TensorOperators.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <atomic>

#include "cohort/core/mutex.h"
#include "cohort/data/graph/dataset_op_suite.h"
#include "cohort/testing/live_threads.h"

namespace cohort::data {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr std::chrono::seconds kPatience(30);

at::Tensor twice(at::Tensor x) { return x * 2; }

at::Tensor throw_at_two(at::Tensor x) {
  COHORT_CHECK(x.item<std::int64_t>() != 2, ErrorCode::data_loss, "two");
  return x;
}

Dataset doubled(std::int64_t count, MapOptions options) { return rows(count).map(&twice, options); }

std::vector<std::int64_t> evens(std::int64_t count) {
  std::vector<std::int64_t> values;
  for (std::int64_t i = 0; i < count; ++i) values.push_back(2 * i);
  return values;
}

INSTANTIATE_TEST_SUITE_P(
    ParallelMap, DatasetOp,
    ::testing::Values(
        DatasetOpCase{"One", [] { return doubled(9, {.num_parallel_calls = 1}); }},
        DatasetOpCase{"Three", [] { return doubled(9, {.num_parallel_calls = 3}); }},
        DatasetOpCase{"Tuned", [] { return doubled(9, {.num_parallel_calls = kAutotune}); }},
        DatasetOpCase{"Batches",
                      [] { return rows(9).batch(2).map(&twice, {.num_parallel_calls = 2}); }},
        DatasetOpCase{"InARow",
                      [] {
                        return doubled(9, {.num_parallel_calls = 2})
                            .map(&twice, {.num_parallel_calls = 2})
                            .prefetch(2);
                      }},
        DatasetOpCase{"Repeated", [] { return doubled(4, {.num_parallel_calls = 3}).repeat(3); }},
        DatasetOpCase{.name = "NoElement",
                      .make = [] { return doubled(0, {.num_parallel_calls = 3}); },
                      .is_empty = true}));

// Calls that wait for each other. Thread-safe.
struct Meeting {
  Mutex mutex;
  Condition changed;
  int present COHORT_GUARDED_BY(mutex) = 0;

  // Whether `count` calls were in this function at the same time.
  bool wait_for(int count) {
    const Lock lock(mutex);
    ++present;
    changed.notify_all();
    return changed.wait(mutex, Deadline::after(kPatience),
                        [&]() COHORT_REQUIRES(mutex) { return present >= count; });
  }
};

TEST(ParallelMap, CallsTheFunctionForSeveralElementsAtOnce) {
  const auto meeting = std::make_shared<Meeting>();
  const Dataset dataset =
      rows(3).map([meeting](at::Tensor x) { return x + (meeting->wait_for(3) ? 1 : 0); },
                  {.num_parallel_calls = 3});
  EXPECT_THAT(scalars_of(dataset), ElementsAre(1, 2, 3));
}

// Regression: the option was stored, but nothing read it.
TEST(ParallelMap, HasAllItsThreadsAtOnceWithoutTuning) {
  const auto meeting = std::make_shared<Meeting>();
  const Dataset dataset =
      rows(3)
          .map([meeting](at::Tensor x) { return x + (meeting->wait_for(3) ? 1 : 0); },
               {.num_parallel_calls = kAutotune})
          .with_options({.private_threadpool_size = 3, .autotune = false});
  EXPECT_THAT(scalars_of(dataset), ElementsAre(1, 2, 3));
}

TEST(ParallelMap, KeepsTheOrder) {
  EXPECT_EQ(scalars_of(doubled(2'000, {.num_parallel_calls = 4})), evens(2'000));
  EXPECT_EQ(scalars_of(doubled(2'000, {.num_parallel_calls = kAutotune})), evens(2'000));
}

TEST(ParallelMap, MayGiveUpTheOrderAndLosesNothing) {
  std::vector<std::int64_t> values =
      scalars_of(doubled(2'000, {.num_parallel_calls = 4, .deterministic = false}));
  std::sort(values.begin(), values.end());
  EXPECT_EQ(values, evens(2'000));
}

// The first call waits until the second result was taken.
TEST(ParallelMap, HandsOnWhatIsReadyWhereTheOrderIsFree) {
  const auto is_taken = std::make_shared<Meeting>();
  Iterator iterator = rows(2)
                          .map(
                              [is_taken](at::Tensor x) {
                                if (x.item<std::int64_t>() == 0) is_taken->wait_for(2);
                                return x;
                              },
                              {.num_parallel_calls = 2})
                          .with_options({.deterministic = false})
                          .iterator();
  EXPECT_EQ(show(iterator.get_next()), "1");
  is_taken->wait_for(1);
  EXPECT_EQ(show(iterator.get_next()), "0");
}

TEST(ParallelMap, KeepsTheOrderWhereTheCallSaysSo) {
  const Dataset dataset = doubled(500, {.num_parallel_calls = 4, .deterministic = true})
                              .with_options({.deterministic = false});
  EXPECT_EQ(scalars_of(dataset), evens(500));
}

TEST(ParallelMap, ReportsErrorsInTheirPlace) {
  EXPECT_THAT(elements_of(rows(5).map(&throw_at_two, {.num_parallel_calls = 2})),
              ElementsAre("0", "1", "error data_loss", "3", "4"));
  EXPECT_THAT(elements_of(rows(5).map(&throw_at_two).map(&twice, {.num_parallel_calls = 3})),
              ElementsAre("0", "2", "error data_loss", "6", "8"));
}

TEST(ParallelMap, NamesTheElementThatFails) {
  Iterator iterator = rows(5).map(&throw_at_two, {.num_parallel_calls = 3}).iterator();
  iterator.get_next();
  iterator.get_next();
  EXPECT_THAT(error_of([&] { iterator.get_next(); }).what(),
              HasSubstr("mapping element 2 with 'map function'"));
}

TEST(ParallelMap, SavesErrorsThatWereNotReportedYet) {
  const Dataset dataset = rows(4).map(&throw_at_two, {.num_parallel_calls = 4});
  Iterator original = dataset.iterator();
  original.get_next();
  const Bytes position = original.save();
  Iterator restored = dataset.iterator();
  restored.restore(position);
  EXPECT_THAT(drain(restored), ElementsAre("1", "error data_loss", "3"));
  EXPECT_THAT(drain(original), ElementsAre("1", "error data_loss", "3"));
}

TEST(ParallelMap, ReadsNoFurtherAheadThanItsBound) {
  const auto calls = std::make_shared<std::atomic<std::int64_t>>(0);
  Iterator iterator =
      rows(1'000)
          .map([calls](at::Tensor x) { return ++*calls, x; }, {.num_parallel_calls = 3})
          .iterator();
  for (std::int64_t taken = 1; taken < 50; ++taken) {
    iterator.get_next();
    EXPECT_LE(calls->load(), taken + 6);
  }
}

TEST(ParallelMap, StopsWhenItsIteratorGoes) {
  const testing::LiveThreads threads;
  for (int taken = 0; taken < 5; ++taken) {
    Iterator iterator =
        rows(1'000'000)
            .map([threads](at::Tensor x) { return threads.note(), x; }, {.num_parallel_calls = 3})
            .repeat()
            .iterator();
    for (int i = 0; i < taken; ++i) iterator.try_next();
  }
  EXPECT_TRUE(threads.have_been());
  EXPECT_EQ(threads.count(), 0);
}

// A peer may have set the pool's size.
TEST(ParallelMap, HasNoMoreThreadsThanItsBoundWhateverAPoolHas) {
  DatasetOptions options;
  options.private_threadpool_size = std::int64_t{1} << 40;
  EXPECT_EQ(parallel_calls_max(options), static_cast<std::size_t>(kThreadsMax));
  options.private_threadpool_size = 3;
  EXPECT_EQ(parallel_calls_max(options), 3U);
}

TEST(ParallelMap, RefusesDegreesThatAreNone) {
  EXPECT_THAT(error_of([] { doubled(3, {.num_parallel_calls = -2}); }).message(),
              HasSubstr("[data.map] expected num_parallel_calls >= 0 or kAutotune, got -2"));
}

}  // namespace
}  // namespace cohort::data
