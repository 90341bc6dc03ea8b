// SPDX-License-Identifier: Apache-2.0
#include <ATen/ops/empty.h>
#include <gmock/gmock.h>

#include <thread>

#include "cohort/core/mutex.h"
#include "cohort/data/graph/dataset_op_suite.h"
#include "cohort/testing/live_threads.h"
#include "cohort/testing/throws_error.h"
#include "cohort/testing/without_threads.h"

namespace cohort::data {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

INSTANTIATE_TEST_SUITE_P(
    Prefetch, DatasetOp,
    ::testing::Values(DatasetOpCase{"Rows", [] { return rows(10).prefetch(3); }},
                      DatasetOpCase{"Tensors", [] { return tensors(10).prefetch(3); }},
                      DatasetOpCase{"Batches", [] { return rows(10).batch(4).prefetch(2); }},
                      DatasetOpCase{"Tuned", [] { return tensors(10).prefetch(-1); }},
                      DatasetOpCase{"Synchronous", [] { return tensors(10).prefetch(0); }},
                      DatasetOpCase{"Twice", [] { return tensors(10).prefetch(2).prefetch(2); }},
                      DatasetOpCase{"Repeated", [] { return tensors(4).prefetch(2).repeat(3); }}));

constexpr std::chrono::seconds kPatience(30);

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
// The user only read "Resource temporarily unavailable".
TEST(PrefetchThread, ThatCannotStartIsNamed) {
  const cohort::testing::WithoutThreads none;
  EXPECT_THAT([] { tensors(3).prefetch(2).iterator().try_next(); },
              cohort::testing::throws_error(ErrorCode::resource_exhausted,
                                            "cannot start a thread to prefetch elements"));
}
#endif

// A source whose elements are counted as they are made. Thread-safe.
struct Counter {
  testing::LiveThreads threads;  // that make them
  Mutex mutex;
  Condition changed;
  std::int64_t made COHORT_GUARDED_BY(mutex) = 0;

  Dataset counted(std::int64_t count, std::int64_t bytes = 1) {
    return rows(count).map([this, bytes](at::Tensor) {
      threads.note();
      const Lock lock(mutex);
      ++made;
      changed.notify_all();
      return at::empty({bytes}, at::kByte);
    });
  }
  bool reaches(std::int64_t count) {
    const Lock lock(mutex);
    return changed.wait(mutex, Deadline::after(kPatience),
                        [&]() COHORT_REQUIRES(mutex) { return made >= count; });
  }
  std::int64_t value() {
    const Lock lock(mutex);
    return made;
  }
};

TEST(Prefetch, WorksAheadWithoutBeingAsked) {
  Counter counter;
  Iterator iterator = counter.counted(100).prefetch(4).iterator();
  iterator.try_next();
  EXPECT_TRUE(counter.reaches(5));
}

TEST(Prefetch, MakesNoMoreThanItsBuffer) {
  Counter counter;
  Iterator iterator = counter.counted(100).prefetch(3).iterator();
  for (std::int64_t taken = 1; taken < 20; ++taken) {
    iterator.try_next();
    EXPECT_LE(counter.value(), taken + 3);
  }
}

TEST(Prefetch, IsBoundedInBytesToo) {
  Counter counter;
  Iterator iterator = counter.counted(100, 100 << 20).prefetch(50).iterator();
  for (std::int64_t taken = 1; taken < 10; ++taken) {
    iterator.try_next();
    EXPECT_LE(counter.value(), taken + 3);  // 256 MiB
  }
}

TEST(Prefetch, WorksInAThreadOfItsOwn) {
  std::thread::id worker;
  const Dataset dataset = rows(1).map([&worker](at::Tensor x) {
    worker = std::this_thread::get_id();
    return x;
  });
  Iterator iterator = dataset.prefetch(1).iterator();
  iterator.get_next();
  EXPECT_NE(worker, std::this_thread::get_id());
}

TEST(Prefetch, DeliversErrorsInTheirPlace) {
  const Dataset failing = rows(5).map([](at::Tensor x) {
    COHORT_CHECK(x.item<std::int64_t>() % 2 == 0, ErrorCode::data_loss, "odd");
    return x;
  });
  EXPECT_THAT(elements_of(failing.prefetch(2)),
              ElementsAre("0", "error data_loss", "2", "error data_loss", "4"));
}

TEST(Prefetch, StopsWhenItsIteratorGoes) {
  Counter counter;
  for (int taken = 0; taken < 5; ++taken) {
    Iterator iterator = counter.counted(1'000'000).prefetch(2).repeat().prefetch(2).iterator();
    for (int i = 0; i < taken; ++i) iterator.try_next();
  }
  EXPECT_TRUE(counter.threads.have_been());
  EXPECT_EQ(counter.threads.count(), 0);
}

TEST(Prefetch, RefusesSizesThatAreNone) {
  EXPECT_THAT(error_of([] { rows(3).prefetch(-2); }).message(),
              HasSubstr("[data.prefetch] expected buffer_size >= -1"));
}

}  // namespace
}  // namespace cohort::data
