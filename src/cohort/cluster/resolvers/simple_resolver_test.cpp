// SPDX-License-Identifier: Apache-2.0
#include "cohort/cluster/cluster_resolver.h"

#include <gtest/gtest.h>

#include "cohort/core/error.h"

namespace cohort {
namespace {

ClusterSpec example() { return ClusterSpec({{"worker", {"a:1", "b:1"}}, {"ps", {"p:1"}}}); }

TEST(SimpleResolver, GivesItsClusterAndKnowsNothingElse) {
  const SimpleResolver resolver(example());
  EXPECT_EQ(resolver.cluster_spec(), example());
  EXPECT_EQ(resolver.task(), std::nullopt);
  EXPECT_EQ(resolver.rpc_layer(), std::nullopt);
  EXPECT_EQ(resolver.environment(), std::nullopt);
  EXPECT_EQ(resolver.master(), "");
  EXPECT_TRUE(resolver.num_accelerators().empty());
  EXPECT_FALSE(resolver.is_server());
}

TEST(SimpleResolver, GivesTheAddressWhenTypeAndIndexAreBothGiven) {
  const SimpleResolver resolver(example(), {.master = "m:1", .task_type = "ps", .task_id = 0});
  EXPECT_EQ(resolver.master({.task_type = "worker", .task_id = 1}), "b:1");
  EXPECT_EQ(resolver.master({.task_type = "worker"}), "m:1");
  EXPECT_EQ(resolver.master(), "m:1");
  EXPECT_THROW(resolver.master({.task_type = "worker", .task_id = 2}), Error);
}

TEST(SimpleResolver, PutsTheLayerBeforeTheAddress) {
  const SimpleResolver resolver(example(), {.rpc_layer = "grpc"});
  EXPECT_EQ(resolver.master({.task_type = "ps", .task_id = 0}), "grpc://p:1");
  EXPECT_EQ(resolver.master({.task_type = "ps", .task_id = 0, .rpc_layer = "x"}), "x://p:1");
  EXPECT_EQ(resolver.master({.rpc_layer = ""}), "grpc://");
}

TEST(SimpleResolver, TakesItsTaskFromOptionsAndSetters) {
  SimpleResolver resolver(example(), {.task_type = "worker", .task_id = 0, .environment = "e"});
  EXPECT_EQ(resolver.task(), (TaskId{"worker", 0}));
  EXPECT_TRUE(resolver.is_server());
  EXPECT_EQ(resolver.environment(), "e");
  resolver.set_task_type("chief");
  resolver.set_task_id(3);
  resolver.set_rpc_layer("grpc");
  EXPECT_EQ(resolver.task(), (TaskId{"chief", 3}));
  EXPECT_EQ(resolver.rpc_layer(), "grpc");
  EXPECT_FALSE(resolver.is_server());
}

TEST(SimpleResolver, GivesItsAcceleratorsVerbatim) {
  const SimpleResolver resolver(example(), {.num_accelerators = {{"GPU", 4}}});
  EXPECT_EQ(resolver.num_accelerators({.task_type = "ps", .task_id = 0}),
            (std::map<std::string, int>{{"GPU", 4}}));
}

}  // namespace
}  // namespace cohort
