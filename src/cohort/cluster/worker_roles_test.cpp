// SPDX-License-Identifier: Apache-2.0
#include "cohort/cluster/worker_roles.h"

#include <gtest/gtest.h>

#include "cohort/testing/throws_error.h"

namespace cohort::cluster {
namespace {

const ClusterSpec kWithChief{
    {"chief", {"c:1"}}, {"worker", {"a:1", "b:1"}}, {"ps", {"p:1"}}, {"evaluator", {"e:1"}}};
const ClusterSpec kWorkers{{"worker", {"a:1", "b:1"}}};

TEST(WorkerRoles, CountTheChiefAsTheFirstWorker) {
  EXPECT_EQ(id_in_cluster(kWithChief, "chief", 0), 0);
  EXPECT_EQ(id_in_cluster(kWithChief, "worker", 1), 2);
  EXPECT_EQ(id_in_cluster(kWorkers, "worker", 1), 1);
  EXPECT_EQ(worker_count(kWithChief, "worker"), 3);
  EXPECT_EQ(worker_count(kWithChief, "chief"), 3);
}

TEST(WorkerRoles, LetAnEvaluatorWorkAlone) {
  EXPECT_EQ(id_in_cluster(kWithChief, "evaluator", 0), 0);
  EXPECT_EQ(worker_count(kWithChief, "evaluator"), 1);
  EXPECT_EQ(worker_count(kWorkers, "evaluator"), 1);
  EXPECT_TRUE(is_chief(kWorkers, "evaluator", 0));
  EXPECT_EQ(collective_leader(kWorkers, "evaluator", 0), std::nullopt);
}

TEST(WorkerRoles, NameOneChief) {
  EXPECT_TRUE(is_chief(kWithChief, "chief", 0));
  EXPECT_FALSE(is_chief(kWithChief, "worker", 0));
  EXPECT_TRUE(is_chief(kWorkers, "worker", 0));
  EXPECT_FALSE(is_chief(kWorkers, "worker", 1));
  EXPECT_FALSE(is_chief(kWithChief, "ps", 0));
}

TEST(WorkerRoles, LeadByTheChiefOrTheFirstWorker) {
  EXPECT_EQ(collective_leader(kWithChief, "worker", 1), (TaskId{"chief", 0}));
  EXPECT_EQ(collective_leader(kWorkers, "worker", 1), (TaskId{"worker", 0}));
  EXPECT_EQ(collective_leader(ClusterSpec(), "worker", 0), std::nullopt);
}

TEST(WorkerRoles, RefuseTasksThatDoNotTrain) {
  const auto refused = [](const char* words) {
    return testing::throws_error(ErrorCode::invalid_argument, words);
  };
  EXPECT_THAT([] { id_in_cluster(kWithChief, "ps", 0); }, refused("which does not train"));
  EXPECT_THAT([] { worker_count(kWithChief, "ps"); }, refused("which does not train"));
  EXPECT_THAT([] { worker_count(kWorkers, "chief"); }, refused("the own job \"chief\""));
  EXPECT_THAT([] { is_chief(kWorkers, "worker", 2); }, refused("worker:2"));
  const ClusterSpec servers{{"ps", {"p:1"}}};
  EXPECT_THAT([&] { collective_leader(servers, "ps", 0); }, refused("a chief or a worker"));
}

}  // namespace
}  // namespace cohort::cluster
