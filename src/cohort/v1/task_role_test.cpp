// SPDX-License-Identifier: Apache-2.0
#include "cohort/v1/task_role.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "cohort/testing/throws_error.h"

namespace cohort::detail::v1 {
namespace {

using testing::throws_error;
using Jobs = std::map<std::string, std::vector<std::string>>;

const Jobs kWithChief = {
    {"chief", {"c:1"}}, {"worker", {"a:1", "b:1"}}, {"ps", {"p:1", "q:1"}}, {"evaluator", {"e:1"}}};
const Jobs kWorkers = {{"worker", {"a:1", "b:1"}}, {"ps", {"p:1"}}};

TaskRole role(const Jobs& jobs, const std::string& type, std::int64_t index) {
  return TaskRole::of(SimpleResolver(ClusterSpec(jobs), {.task_type = type, .task_id = index}));
}

TEST(TaskRole, TheChiefIsTheTaskChiefOrWorker0) {
  EXPECT_TRUE(role(kWithChief, "chief", 0).is_chief());
  EXPECT_FALSE(role(kWithChief, "worker", 0).is_chief());
  EXPECT_EQ(role(kWithChief, "worker", 1).chief(), "chief:0");
  EXPECT_TRUE(role(kWorkers, "worker", 0).is_chief());
  EXPECT_FALSE(role(kWorkers, "worker", 1).is_chief());
  EXPECT_EQ(role(kWorkers, "worker", 1).chief(), "worker:0");
}

TEST(TaskRole, AnEvaluatorIsAloneAndItsOwnChief) {
  const TaskRole evaluator = role(kWithChief, "evaluator", 0);
  EXPECT_TRUE(evaluator.is_chief());
  EXPECT_FALSE(evaluator.has_servers());
  EXPECT_EQ(evaluator.num_workers(), 1);
}

TEST(TaskRole, EachTaskThatTrainsHasItsOriginAndItsPartOfTheData) {
  EXPECT_EQ(role(kWithChief, "chief", 0).origin(), 0U);
  EXPECT_EQ(role(kWithChief, "worker", 0).origin(), 1U);
  EXPECT_EQ(role(kWithChief, "worker", 1).origin(), 2U);
  EXPECT_EQ(role(kWithChief, "worker", 1).num_workers(), 3);
  EXPECT_EQ(role(kWithChief, "worker", 1).worker(), 2);
  EXPECT_EQ(role(kWorkers, "worker", 0).worker(), 0);
}

TEST(TaskRole, AnEmptyClusterIsThisProcessAlone) {
  const TaskRole alone = TaskRole::of(SimpleResolver(ClusterSpec()));
  EXPECT_TRUE(alone.is_alone());
  EXPECT_TRUE(alone.is_chief());
  EXPECT_EQ(alone.num_servers(), 0);
  EXPECT_EQ(alone.device_prefix(), "");
}

TEST(TaskRole, MistakesAreNamed) {
  const auto make = [](const Jobs& jobs, const std::string& type, std::int64_t index) {
    return [=] { role(jobs, type, index); };
  };
  const auto refused = [](const std::string& words) {
    return throws_error(ErrorCode::invalid_argument, words);
  };
  const Jobs other = {{"worker", {"a:1"}}, {"ps", {"p:1"}}, {"master", {"m:1"}}};
  EXPECT_THAT(make({{"worker", {"a:1"}}}, "worker", 0), refused("at least one ps"));
  EXPECT_THAT(make(kWorkers, "ps", 0), refused("cohort server"));
  EXPECT_THAT(make(kWorkers, "worker", 2), refused("worker"));
  EXPECT_THAT(make(kWorkers, "worker", -1), refused("-1"));
  EXPECT_THAT(make(kWorkers, "chief", 0), refused("\"chief\""));
  EXPECT_THAT(make(kWorkers, "trainer", 0), refused("\"trainer\""));
  Jobs several = kWithChief;
  several["chief"] = {"c:1", "d:1"};
  EXPECT_THAT(make(several, "worker", 0), refused("at most one chief"));
  several = kWithChief;
  several["evaluator"] = {"e:1", "f:1"};
  EXPECT_THAT(make(several, "worker", 0), refused("at most one evaluator"));
  EXPECT_THAT(make(other, "worker", 0), refused("master"));
  EXPECT_THAT([] { TaskRole::of(SimpleResolver(ClusterSpec(kWorkers))); }, refused("no type"));
  EXPECT_THAT([] { TaskRole::of(SimpleResolver(ClusterSpec(kWorkers), {.task_type = "worker"})); },
              refused("index"));
}

TEST(TaskRole, APartialDeviceScopeIsThatOfTheTask) {
  const TaskRole worker = role(kWorkers, "worker", 1);
  EXPECT_EQ(worker.device_in_scope(""), "/job:worker/task:1/CPU:0");
  EXPECT_EQ(worker.device_in_scope("/device:CPU:0"), "/job:worker/task:1/CPU:0");
  EXPECT_EQ(worker.device_in_scope("/job:ps/task:0"), "/job:ps/task:0/CPU:0");
}

}  // namespace
}  // namespace cohort::detail::v1
