// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cohort/cluster/resolvers.h"
#include "cohort/testing/throws_error.h"

namespace cohort {
namespace {

using testing::throws_error;

std::shared_ptr<const ClusterResolver> part(ClusterSpec spec,
                                            SimpleResolver::Options options = {}) {
  return std::make_shared<SimpleResolver>(std::move(spec), std::move(options));
}

TEST(UnionResolver, PutsListsOfAJobTogether) {
  const UnionResolver both({part({{"worker", {"a:1"}}, {"ps", {"p:1"}}}),
                            part({{"worker", {"b:1", "c:1"}}, {"chief", {"d:1"}}})});
  EXPECT_EQ(both.cluster_spec(),
            ClusterSpec({{"worker", {"a:1", "b:1", "c:1"}}, {"ps", {"p:1"}}, {"chief", {"d:1"}}}));
}

TEST(UnionResolver, KeepsIndicesThatAreNoList) {
  const auto sparse = part(ClusterSpec::from_tasks({{"worker", {{3, "c:1"}}}}));
  const UnionResolver both({part({{"worker", {"a:1", "b:1"}}}), sparse});
  EXPECT_EQ(both.cluster_spec(),
            ClusterSpec::from_tasks({{"worker", {{0, "a:1"}, {1, "b:1"}, {3, "c:1"}}}}));
  const UnionResolver same({sparse, sparse});  // the error comes with the query
  EXPECT_THAT([&] { same.cluster_spec(); },
              throws_error(ErrorCode::not_found, "job 'worker' in one resolver, got index 3"));
}

TEST(UnionResolver, HasTheTaskOfTheFirstUnlessItIsSet) {
  const ClusterSpec spec{{"worker", {"a:1", "b:1"}}};
  UnionResolver resolver({part(spec, {.master = "m:1",
                                      .task_type = "worker",
                                      .task_id = 1,
                                      .environment = "e",
                                      .num_accelerators = {{"GPU", 2}},
                                      .rpc_layer = "grpc"}),
                          part({{"ps", {"p:1"}}}, {.master = "n:1"})});
  EXPECT_EQ(resolver.task(), (TaskId{"worker", 1}));
  EXPECT_EQ(resolver.environment(), "e");
  EXPECT_EQ(resolver.master(), "grpc://m:1");
  EXPECT_EQ(resolver.master({.task_type = "ps", .task_id = 0}), "p:1");
  EXPECT_EQ(resolver.num_accelerators(), (std::map<std::string, int>{{"GPU", 2}}));
  resolver.set_task_type("ps");
  resolver.set_task_id(3);
  resolver.set_rpc_layer("x");
  EXPECT_EQ(resolver.task(), (TaskId{"ps", 3}));
  EXPECT_EQ(resolver.master({.task_type = "ps", .task_id = 0}), "x://p:1");
}

TEST(UnionResolver, NeedsResolvers) {
  EXPECT_THAT([] { UnionResolver({}); },
              throws_error(ErrorCode::invalid_argument, "at least one resolver, got none"));
  EXPECT_THAT(
      [] {
        UnionResolver({part({}), nullptr});
      },
      throws_error(ErrorCode::invalid_argument, "got nullptr at position 1"));
}

}  // namespace
}  // namespace cohort
