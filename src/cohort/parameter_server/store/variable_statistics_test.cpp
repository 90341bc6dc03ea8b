// SPDX-License-Identifier: Apache-2.0
#include "cohort/parameter_server/store/variable_statistics.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/tensor.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace cohort::parameter_server {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

at::Tensor ids(std::vector<std::int64_t> values) { return at::tensor(values, at::kLong); }

TEST(HotRows, CountsFewRowsExactly) {
  HotRows rows(2);
  rows.note(ids({5, 7, 5, -1}));
  rows.note(ids({9, 5, 7}));
  const auto top = rows.top();
  ASSERT_EQ(top.size(), 2U);
  EXPECT_EQ(top[0].row, 5);
  EXPECT_EQ(top[0].times, 3U);
  EXPECT_EQ(top[1].row, 7);
  EXPECT_EQ(top[1].times, 2U);
}

// More rows than it counts, of which three are a fifth of all.
TEST(HotRows, FindsHotRowsAmongMany) {
  HotRows rows(3);
  for (std::int64_t round = 0; round < 500; ++round) {
    const std::int64_t first = 1'000 + 12 * round;
    rows.note(at::arange(first, first + 12, at::kLong));
    rows.note(ids({11, 22, 33}));
  }
  std::vector<std::int64_t> found;
  for (const RowCount& row : rows.top()) {
    found.push_back(row.row);
    EXPECT_GE(row.times, 500U) << "never too low";
  }
  EXPECT_THAT(found, ::testing::UnorderedElementsAre(11, 22, 33));
}

TEST(HotRows, TakesASampleOfALargeRequest) {
  HotRows rows(1);
  rows.note(at::full({100'000}, 4, at::kLong));
  ASSERT_EQ(rows.top().size(), 1U);
  EXPECT_EQ(rows.top()[0].row, 4);
  EXPECT_NEAR(static_cast<double>(rows.top()[0].times), 100'000, 500);
}

TEST(HotRows, CountsNothingUnlessItIsWanted) {
  HotRows rows(0);
  rows.note(ids({1, 2}));
  EXPECT_TRUE(rows.top().empty());
}

TEST(Rate, IsThatOfTheLastTenFullSeconds) {
  Rate rate;
  const TimePoint start{seconds(1'000)};
  EXPECT_EQ(rate.per_second(start), 0);
  rate.add(30, start);
  rate.add(20, start + milliseconds(900));
  EXPECT_EQ(rate.per_second(start + milliseconds(999)), 0) << "the second is not over";
  EXPECT_EQ(rate.per_second(start + seconds(1)), 5);
  rate.add(50, start + seconds(9));
  EXPECT_EQ(rate.per_second(start + seconds(10)), 10);
  EXPECT_EQ(rate.per_second(start + seconds(11)), 5) << "the first second is too long ago";
  rate.add(10, start + seconds(16));  // takes the place of the first second
  EXPECT_EQ(rate.per_second(start + seconds(17)), 6);
  EXPECT_EQ(rate.per_second(start + seconds(1'000)), 0);
}

}  // namespace
}  // namespace cohort::parameter_server
