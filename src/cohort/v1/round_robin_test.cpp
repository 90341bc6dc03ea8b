// SPDX-License-Identifier: Apache-2.0
#include "cohort/v1/round_robin.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cohort/testing/throws_error.h"

namespace cohort::detail::v1 {
namespace {

using ::testing::ElementsAre;

const TensorSpec kMatrix{at::kFloat, {{5, 2}}};

std::vector<std::uint64_t> servers_of(const std::vector<rpc::Slice>& slices) {
  std::vector<std::uint64_t> servers;
  for (const rpc::Slice& slice : slices) servers.push_back(slice.server);
  return servers;
}

TEST(RoundRobin, EachVariableTakesATurnUnlessItIsBesideAnother) {
  RoundRobin servers(2, {});
  const auto a = servers.next("a", kMatrix);
  const auto b = servers.next("b", kMatrix);
  EXPECT_THAT(servers_of(a), ElementsAre(0));
  EXPECT_THAT(servers_of(b), ElementsAre(1));
  EXPECT_THAT(servers_of(RoundRobin::beside(b)), ElementsAre(1));
  EXPECT_THAT(servers_of(servers.next("c", kMatrix)), ElementsAre(0));
}

TEST(RoundRobin, EachShardTakesATurn) {
  RoundRobin servers(2, FixedShardsPartitioner(3));
  servers.next("scalar", {at::kFloat, {std::vector<std::int64_t>{}}});
  const auto slices = servers.next("m", kMatrix);
  EXPECT_THAT(servers_of(slices), ElementsAre(1, 0, 1));
  EXPECT_EQ(slices[0].rows, 2);
  EXPECT_EQ(slices[2].rows, 1);
  EXPECT_EQ(slices[2].first_row, 4);
}

TEST(RoundRobin, APartitionerMustDivideRows) {
  RoundRobin servers(2, [](const TensorSpec&) { return std::vector<std::int64_t>{1, 2}; });
  EXPECT_THAT([&] { servers.next("m", kMatrix); },
              testing::throws_error(ErrorCode::invalid_argument, "'m'"));
}

}  // namespace
}  // namespace cohort::detail::v1
