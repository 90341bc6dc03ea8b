// SPDX-License-Identifier: Apache-2.0
#include "cohort/input/iterators/read_ahead.h"

#include <ATen/ops/scalar_tensor.h>
#include <gtest/gtest.h>

#include "cohort/core/mutex.h"
#include "cohort/data/dataset.h"
#include "cohort/data/iterator.h"

namespace cohort::input {
namespace {

// Regression: the destructor waited until the thread had found the element it was looking for.
TEST(ReadAhead, EndsWhileItsSourceSearchesInVain) {
  Mutex mutex;
  Condition changed;
  std::int64_t drawn = 0;
  // The filter gives up after a while, so that a failing test does not hang.
  const Deadline patience = Deadline::after(std::chrono::seconds(60));
  const Dataset dataset =
      Dataset::range(std::int64_t{1} << 40)
          .filter(Function(
              [&](at::Tensor x) {
                const Lock lock(mutex);
                ++drawn;
                changed.notify_all();
                return at::scalar_tensor(x.item<std::int64_t>() == 0 || patience.has_expired(),
                                         at::kBool);
              },
              {.name = "first"}));
  std::stop_source stop;
  {
    ReadAhead source(stop, data::cancellable_source(dataset, {}, stop.get_token()), 2);
    Fields fields;
    EXPECT_TRUE(source.next(fields));
    const Lock lock(mutex);
    EXPECT_TRUE(
        changed.wait(mutex, patience, [&]() COHORT_REQUIRES(mutex) { return drawn > 100; }));
  }
  EXPECT_FALSE(patience.has_expired());
}

}  // namespace
}  // namespace cohort::input
