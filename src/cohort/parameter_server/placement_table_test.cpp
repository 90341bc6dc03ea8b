// SPDX-License-Identifier: Apache-2.0
#include "cohort/parameter_server/placement_table.h"

#include <gtest/gtest.h>

#include <array>

#include "cohort/testing/throws_error.h"

namespace cohort::parameter_server {
namespace {

constexpr std::array<std::uint64_t, 2> kBoth{7, 8};

TEST(PlacementTable, HasTheSlicesOfOneVersion) {
  PlacementTable table;
  table.take({.version = 1, .slices = {{.variable = 8, .server = 1}}});
  table.take({.version = 1, .slices = {{.variable = 7, .server = 0}}});
  const rpc::Placement both = table.find(kBoth);
  EXPECT_EQ(both.version, 1U);
  EXPECT_EQ(both.slices.at(0).server, 0U);
  EXPECT_EQ(both.slices.at(1).server, 1U);
}

TEST(PlacementTable, ALaterVersionReplacesAll) {
  PlacementTable table;
  table.take(
      {.version = 1, .slices = {{.variable = 7, .server = 0}, {.variable = 8, .server = 0}}});
  table.take({.version = 2, .slices = {{.variable = 7, .server = 1}}});
  table.take({.version = 1, .slices = {{.variable = 7, .server = 0}}});  // comes late
  EXPECT_EQ(table.find(std::span(kBoth).first(1)).slices.at(0).server, 1U);
  EXPECT_THAT([&] { table.find(kBoth); },
              testing::throws_error(ErrorCode::not_found, "got number 8"));
}

}  // namespace
}  // namespace cohort::parameter_server
