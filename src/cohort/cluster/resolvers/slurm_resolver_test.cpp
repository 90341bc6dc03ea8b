// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "cohort/cluster/resolvers.h"
#include "cohort/testing/throws_error.h"

namespace cohort {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using testing::throws_error;

TEST(SlurmHosts, AreExpanded) {
  EXPECT_THAT(expand_slurm_hosts(""), IsEmpty());
  EXPECT_THAT(expand_slurm_hosts("n[01-03,7],m5"), ElementsAre("n01", "n02", "n03", "n7", "m5"));
  EXPECT_THAT(expand_slurm_hosts("x[098-101]"), ElementsAre("x098", "x099", "x100", "x101"));
  EXPECT_THAT(expand_slurm_hosts("rack[0-1]n[2,4]"),
              ElementsAre("rack0n2", "rack0n4", "rack1n2", "rack1n4"));
  EXPECT_THAT(expand_slurm_hosts("n[1-2][3-4]"), ElementsAre("n13", "n14", "n23", "n24"));
}

TEST(SlurmHosts, WrongTextIsRefusedWithItsPlace) {
  const std::pair<const char*, const char*> cases[] = {
      {"n[1-2", "character 6"}, {"n[1-2]-x", "character 9"}, {"n[]", "character 3"},
      {"a,,b", "character 3"},  {"a,", "character 3"},       {"n]", "character 2"},
      {"n[1-x]", "character 5"}};
  for (const auto& [text, place] : cases) {
    EXPECT_THAT([&list = text] { expand_slurm_hosts(list); },
                throws_error(ErrorCode::invalid_argument, place))
        << text;
  }
  for (const char* text : {"n[0-999999999]", "n[0-9999]m[0-9999]", "n[1-9999999999999999999]"}) {
    EXPECT_THAT([&] { expand_slurm_hosts(text); }, throws_error(ErrorCode::invalid_argument, "n["));
  }
}

TEST(SlurmTasks, AreExpanded) {
  EXPECT_THAT(expand_slurm_tasks("3(x2),2"), ElementsAre(3, 3, 2));
  for (const char* text : {"", "x2", "3(2)", "3(x)", "2, 3", "-1", "2(x3", "1(x999999999)"}) {
    EXPECT_THAT([&] { expand_slurm_tasks(text); },
                throws_error(ErrorCode::invalid_argument, "numbers of tasks"))
        << text;
  }
}

// Sets the variables that Slurm sets, and only those.
class Slurm : public ::testing::Test {
 protected:
  void SetUp() override { clear(); }
  void TearDown() override { clear(); }
  static void clear() {
    for (const char* name : kNames) ::unsetenv(name);
  }
  static void set(const char* name, const char* value) { ::setenv(name, value, 1); }
  static void set_step(const char* rank, const char* tasks, const char* hosts,
                       const char* tasks_per_node) {
    set("SLURM_PROCID", rank);
    set("SLURM_STEP_NUM_TASKS", tasks);
    set("SLURM_STEP_NODELIST", hosts);
    set("SLURM_STEP_TASKS_PER_NODE", tasks_per_node);
  }
  static std::string visible() {
    const char* const text = std::getenv("CUDA_VISIBLE_DEVICES");
    return text == nullptr ? "none" : text;
  }

  static constexpr const char* kNames[] = {
      "SLURM_PROCID",  "SLURM_STEP_NUM_TASKS", "SLURM_STEP_NODELIST",  "SLURM_STEP_TASKS_PER_NODE",
      "SLURM_NTASKS",  "SLURM_JOB_NODELIST",   "SLURM_TASKS_PER_NODE", "SLURM_NODEID",
      "SLURM_LOCALID", "SLURMD_NODENAME",      "SLURM_GPUS_PER_TASK",  "CUDA_VISIBLE_DEVICES"};
};

TEST_F(Slurm, GivesEachTaskAnAddressAndItsGpus) {
  set_step("2", "4", "n[1-2]", "2(x2)");
  set("CUDA_VISIBLE_DEVICES", "4,5,6,7");
  const SlurmResolver resolver({.jobs = {{"worker", 3}, {"chief", 1}}, .port_base = 9000});
  EXPECT_EQ(resolver.cluster_spec(),
            ClusterSpec({{"chief", {"n1:9000"}}, {"worker", {"n1:9001", "n2:9000", "n2:9001"}}}));
  EXPECT_EQ(resolver.task(), (TaskId{"worker", 1}));
  EXPECT_EQ(resolver.master(), "grpc://n2:9000");
  EXPECT_EQ(resolver.num_accelerators(), (std::map<std::string, int>{{"GPU", 2}}));
  EXPECT_EQ(visible(), "4,5") << "the first task of its host";
}

TEST_F(Slurm, WithoutGpusLeavesTheVariableAlone) {
  set_step("1", "2", "a", "2");
  const SlurmResolver resolver(SlurmResolverOptions{.gpus_per_node = 0});
  EXPECT_THAT(resolver.num_accelerators(), IsEmpty());
  EXPECT_EQ(visible(), "none");
}

TEST_F(Slurm, LeavesGpusThatSlurmHasGivenOut) {
  set_step("1", "2", "a", "2");
  set("SLURM_GPUS_PER_TASK", "1");
  set("CUDA_VISIBLE_DEVICES", "3");
  const SlurmResolver resolver;
  EXPECT_EQ(resolver.num_accelerators(), (std::map<std::string, int>{{"GPU", 1}}));
  EXPECT_EQ(visible(), "3");
}

TEST_F(Slurm, TakesTheStepBeforeTheJob) {
  set("SLURM_PROCID", "0");
  set("SLURM_NTASKS", "3");
  set("SLURM_JOB_NODELIST", "j[1-3]");
  set("SLURM_TASKS_PER_NODE", "1(x3)");
  EXPECT_EQ(SlurmResolver().cluster_spec().num_tasks("worker"), 3);
  set_step("0", "1", "s", "1");
  EXPECT_EQ(SlurmResolver().cluster_spec(), ClusterSpec({{"worker", {"s:8888"}}}));
  ::unsetenv("SLURM_STEP_NODELIST");
  EXPECT_THAT([] { SlurmResolver(); },
              throws_error(ErrorCode::failed_precondition, "SLURM_STEP_NODELIST"));
}

// Slurm's rank 0 is on the first host of its list; "n10" is before "n9" as text.
TEST_F(Slurm, KeepsTheOrderOfTheRanks) {
  set_step("0", "2", "n[9-10]", "1(x2)");
  EXPECT_EQ(SlurmResolver().master(), "grpc://n10:8888") << "sorted, as in tf";
  set("SLURMD_NODENAME", "n9");
  EXPECT_EQ(SlurmResolver().master(), "grpc://n9:8888");
}

TEST_F(Slurm, RefusesAnotherDistributionOfTheRanks) {
  set_step("1", "4", "n[1-2]", "2(x2)");
  set("SLURMD_NODENAME", "n2");
  set("SLURM_NODEID", "1");
  set("SLURM_LOCALID", "0");
  EXPECT_THAT([] { SlurmResolver(); },
              throws_error(ErrorCode::failed_precondition, "rank 2 for task 0 of node 1, got 1"));
  set("SLURM_PROCID", "2");
  EXPECT_EQ(SlurmResolver().master(), "grpc://n2:8888");
}

TEST_F(Slurm, RefusesWhatContradicts) {
  const auto refuses = [](const SlurmResolverOptions& options, const char* words) {
    EXPECT_THAT([&] { SlurmResolver{options}; },
                throws_error(ErrorCode::failed_precondition, words));
  };
  refuses({}, "SLURM_PROCID");
  set_step("0", "3", "n[1-2]", "1(x3)");
  refuses({}, "3 numbers ('1(x3)') for 2 hosts ('n[1-2]')");
  set_step("0", "3", "n[1-2]", "1(x2)");
  refuses({}, "3 tasks on all hosts, as SLURM_STEP_NUM_TASKS says, got 2");
  set_step("2", "2", "n[1-2]", "1(x2)");
  refuses({}, "SLURM_PROCID below 2");
  set_step("0", "2", "n[1-2]", "1(x2)");
  refuses({.jobs = {{"worker", 3}}}, "got 3; change the jobs");
  refuses({.gpus_per_node = 1, .gpus_per_task = 2}, "at least 2 GPUs for each of the 1 tasks");
  set("CUDA_VISIBLE_DEVICES", "0");
  refuses({.gpus_per_node = 2}, "2 GPUs in CUDA_VISIBLE_DEVICES");
  EXPECT_THAT([] { SlurmResolver(SlurmResolverOptions{.port_base = 70000}); },
              throws_error(ErrorCode::invalid_argument, "port_base, got 70000"));
}

}  // namespace
}  // namespace cohort
