// SPDX-License-Identifier: Apache-2.0
#include "cohort/parameter_server/placement_table.h"

#include <gtest/gtest.h>

#include <array>
#include <limits>

#include "cohort/testing/throws_error.h"

namespace cohort::parameter_server {
namespace {

constexpr std::array<std::uint64_t, 2> kBoth{7, 8};

TEST(PlacementTable, HasTheSlicesOfOneVersion) {
  PlacementTable table;
  table.take({.version = 1, .slices = {{.variable = 8, .server = 1}}});
  table.take({.version = 1, .slices = {{.variable = 7, .server = 0}}});
  const Places both = table.find(kBoth);
  EXPECT_EQ(both.version(), 1U);
  EXPECT_EQ(both.num_variables(), 2U);
  EXPECT_EQ(both.of(0).front().server, 0U);
  EXPECT_EQ(both.of(1).front().server, 1U);
}

TEST(PlacementTable, ALaterVersionReplacesAll) {
  PlacementTable table;
  table.take(
      {.version = 1, .slices = {{.variable = 7, .server = 0}, {.variable = 8, .server = 0}}});
  table.take({.version = 2, .slices = {{.variable = 7, .server = 1}}});
  table.take({.version = 1, .slices = {{.variable = 7, .server = 0}}});  // comes late
  EXPECT_EQ(table.find(std::span(kBoth).first(1)).of(0).front().server, 1U);
  EXPECT_THAT([&] { table.find(kBoth); },
              testing::throws_error(ErrorCode::not_found, "got number 8"));
}

TEST(PlacementTable, AShardedVariableHasSeveralParts) {
  PlacementTable table;
  table.take({.slices = {{.variable = 7, .server = 1},
                         {.variable = 8, .server = 0, .first_row = 0, .rows = 3, .shard = 9},
                         {.variable = 8, .server = 1, .first_row = 3, .rows = 2, .shard = 10}}});
  const Places both = table.find(kBoth);
  EXPECT_EQ(both.parts().size(), 3U);
  EXPECT_EQ(both.first_part(1), 1U);
  ASSERT_EQ(both.of(1).size(), 2U);
  EXPECT_EQ(both.of(1)[1].stored(), 10U);
  EXPECT_EQ(both.of(0)[0].stored(), 7U);
  EXPECT_EQ(table.message(kBoth).slices.size(), 3U);
}

TEST(PlacementTable, TakesSlicesByKey) {
  PlacementTable table;
  constexpr std::int64_t kByKey = rpc::Slice::kRowsByKey;
  table.take({.slices = {{.variable = 8, .first_row = 0, .rows = kByKey, .shard = 9},
                         {.variable = 8, .server = 1, .first_row = 1, .rows = kByKey}}});
  EXPECT_EQ(table.find(std::array<std::uint64_t, 1>{8}).parts().size(), 2U);
}

// They come from a message.
TEST(PlacementTable, RefusesSlicesThatAreNotAllRowsInOrder) {
  using Slices = std::vector<rpc::Slice>;
  const rpc::Slice first{.variable = 8, .first_row = 0, .rows = 3, .shard = 9};
  const rpc::Slice second{.variable = 8, .first_row = 3, .rows = 2, .shard = 10};
  const rpc::Slice whole{.variable = 8};
  const rpc::Slice empty{.variable = 8, .first_row = 3, .rows = 0, .shard = 10};
  const rpc::Slice negative{.variable = 8, .first_row = 0, .rows = -3, .shard = 10};
  const rpc::Slice too_many{
      .variable = 8, .first_row = 3, .rows = std::numeric_limits<std::int64_t>::max(), .shard = 10};
  const rpc::Slice by_key{.variable = 8, .first_row = 0, .rows = rpc::Slice::kRowsByKey};
  const rpc::Slice late_key{.variable = 8, .first_row = 3, .rows = rpc::Slice::kRowsByKey};
  const rpc::Slice after_key{.variable = 8, .first_row = 1, .rows = 2};
  for (const Slices& slices :
       {Slices{second}, Slices{second, first}, Slices{first, first}, Slices{whole, second},
        Slices{first, empty}, Slices{first, too_many}, Slices{negative}, Slices{late_key},
        Slices{by_key, by_key}, Slices{first, late_key}, Slices{by_key, after_key}}) {
    PlacementTable table;
    EXPECT_THAT([&] { table.take({.slices = slices}); },
                testing::throws_error(ErrorCode::invalid_argument, "that have all rows in order"));
  }
}

}  // namespace
}  // namespace cohort::parameter_server
