// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cohort/cluster/chosen_resolver.h"
#include "cohort/cluster/cluster_resolver.h"
#include "cohort/testing/launcher_environment.h"
#include "cohort/testing/throws_error.h"

namespace cohort {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::LauncherEnvironment;
using testing::throws_error;
using EnvironmentVariables = LauncherEnvironment::Variables;

const EnvironmentVariables kTfConfig = {
    {"TF_CONFIG",
     R"({"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 1}})"}};
const EnvironmentVariables kByTorchrun = {{"TORCHELASTIC_RUN_ID", "j"},
                                          {"RANK", "3"},
                                          {"WORLD_SIZE", "4"},
                                          {"MASTER_ADDR", "h"},
                                          {"MASTER_PORT", "29500"}};
const EnvironmentVariables kByHand = {
    {"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "h"}, {"MASTER_PORT", "29500"}};
const EnvironmentVariables kOpenMpi = {{"OMPI_COMM_WORLD_RANK", "1"},
                                       {"OMPI_COMM_WORLD_SIZE", "2"}};
const EnvironmentVariables kMpich = {{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}};
const EnvironmentVariables kSlurmStep = {{"SLURM_JOB_ID", "7"},
                                         {"SLURM_PROCID", "1"},
                                         {"SLURM_NTASKS", "2"},
                                         {"SLURM_STEP_NUM_TASKS", "2"},
                                         {"SLURM_STEP_NODELIST", "n[1-2]"},
                                         {"SLURM_STEP_TASKS_PER_NODE", "1(x2)"}};
const EnvironmentVariables kDmlcJob = {{"DMLC_ROLE", "worker"},   {"DMLC_NUM_SERVER", "1"},
                                       {"DMLC_NUM_WORKER", "1"},  {"DMLC_WORKER_ID", "0"},
                                       {"DMLC_PS_ROOT_URI", "h"}, {"DMLC_PS_ROOT_PORT", "29500"}};
const EnvironmentVariables kSageMaker = {{"SM_HOSTS", R"(["a", "b"])"}, {"SM_CURRENT_HOST", "b"}};

class FromEnvironment : public ::testing::Test {
 protected:
  static void set(std::initializer_list<EnvironmentVariables> all) {
    LauncherEnvironment::clear();
    for (const EnvironmentVariables& each : all) LauncherEnvironment::set(each);
  }
  static std::string chosen(std::initializer_list<EnvironmentVariables> all) {
    set(all);
    return cluster::choose_resolver().name;
  }
  static std::string conflict(std::initializer_list<EnvironmentVariables> all) {
    set(all);
    return cluster::choose_resolver().conflict;
  }

  LauncherEnvironment environment_;
};

TEST_F(FromEnvironment, EachLauncherIsKnownByItsVariables) {
  const std::pair<EnvironmentVariables, std::string> cases[] = {
      {{}, "none"},          {kTfConfig, "tf_config"}, {kByTorchrun, "torchrun"},
      {kByHand, "torchrun"}, {kOpenMpi, "mpi"},        {kMpich, "mpi"},
      {kSlurmStep, "slurm"}, {kDmlcJob, "dmlc"},       {kSageMaker, "sagemaker"}};
  for (const auto& [variables, name] : cases) {
    EXPECT_EQ(chosen({variables}), name);
    EXPECT_THAT(conflict({variables}), IsEmpty()) << name;
    EXPECT_EQ(ClusterResolver::from_environment()->task().has_value(), name != "none") << name;
  }
}

TEST_F(FromEnvironment, TheInnermostCounts) {
  EXPECT_EQ(chosen({kSlurmStep, kByTorchrun}), "torchrun");  // srun torchrun …
  EXPECT_EQ(chosen({kSlurmStep, kOpenMpi}), "mpi");          // mpirun starts its daemons by srun
  EXPECT_EQ(chosen({kSlurmStep, kMpich}), "slurm");          // srun --mpi=pmi2
  EXPECT_EQ(chosen({kSlurmStep, kByHand}), "slurm");         // a job script has set RANK
  EXPECT_EQ(chosen({kOpenMpi, kByHand}), "mpi");
  EXPECT_EQ(chosen({kSlurmStep, kByTorchrun, kOpenMpi, kDmlcJob, kTfConfig}), "tf_config");
  EXPECT_EQ(chosen({kSageMaker, kByTorchrun}), "torchrun");
}

TEST_F(FromEnvironment, TwoClustersAreAConflictThatNamesBoth) {
  const EnvironmentVariables two_on_a_host = {{"SLURM_STEP_NODELIST", "n1"},
                                              {"SLURM_STEP_TASKS_PER_NODE", "2"}};
  EXPECT_THAT(conflict({kSlurmStep, two_on_a_host, kByTorchrun}),
              AllOf(HasSubstr("torchrun (rank 3 of 4 tasks)"),
                    HasSubstr("slurm (rank 1 of 2 tasks)"), HasSubstr("COHORT_CLUSTER_RESOLVER")));
  // The same cluster, told twice.
  EXPECT_THAT(conflict({kSlurmStep, kOpenMpi}), IsEmpty());
  EXPECT_THAT(conflict({kTfConfig, kSlurmStep}), IsEmpty());
  EXPECT_THAT(conflict({kTfConfig, kByTorchrun}), HasSubstr("tf_config (2 tasks)"));
  // A shell that srun has started.
  EXPECT_THAT(conflict({kSlurmStep, {{"SLURM_STEP_NUM_TASKS", "1"}}, kByTorchrun}), IsEmpty());
  EXPECT_THAT(
      conflict({kSlurmStep, two_on_a_host, kByTorchrun, {{"COHORT_CLUSTER_RESOLVER", "slurm"}}}),
      IsEmpty());
}

// Regression: each job of mpirun or torchrun in an allocation of Slurm's had a warning.
TEST_F(FromEnvironment, ALauncherOnEachHostOfASlurmStepIsNoConflict) {
  EXPECT_THAT(conflict({kSlurmStep, kByTorchrun}), IsEmpty());
  EXPECT_THAT(conflict({kSlurmStep, kOpenMpi, {{"OMPI_COMM_WORLD_SIZE", "3"}}}), IsEmpty());
  const EnvironmentVariables fewer = {{"RANK", "0"}, {"WORLD_SIZE", "1"}};
  EXPECT_THAT(conflict({kSlurmStep, kByTorchrun, fewer}), HasSubstr("slurm (rank 1 of 2 tasks)"));
}

TEST_F(FromEnvironment, ABatchScriptWithoutSrunIsNoStep) {
  set({{{"SLURM_JOB_ID", "7"}, {"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "4"}}});
  const cluster::ChosenResolver chosen = cluster::choose_resolver();
  EXPECT_EQ(chosen.name, "none");
  EXPECT_THAT(chosen.conflict, HasSubstr("start the program with srun"));
  EXPECT_FALSE(ClusterResolver::from_environment()->cluster_spec());
}

TEST_F(FromEnvironment, OneIsForcedByItsName) {
  set({kTfConfig, kSlurmStep, {{"COHORT_CLUSTER_RESOLVER", "slurm"}}});
  EXPECT_EQ(ClusterResolver::from_environment()->cluster_spec().task_address("worker", 1),
            "n2:8888");
  set({kTfConfig, {{"COHORT_CLUSTER_RESOLVER", "none"}}});
  EXPECT_FALSE(ClusterResolver::from_environment()->cluster_spec());
  set({kTfConfig, {{"COHORT_CLUSTER_RESOLVER", "slrum"}}});
  EXPECT_THAT([] { ClusterResolver::from_environment(); },
              throws_error(ErrorCode::invalid_argument, "did you mean 'slurm'?"));
  set({{{"COHORT_CLUSTER_RESOLVER", "mpi"}}});
  EXPECT_THAT([] { ClusterResolver::from_environment(); },
              throws_error(ErrorCode::failed_precondition, "start the program with mpirun"));
}

TEST_F(FromEnvironment, RanksBecomeTheTasksOfJobs) {
  set({kSlurmStep, {{"COHORT_TASKS", "chief=1,worker=1"}, {"COHORT_PORT_BASE", "21000"}}});
  const auto resolver = ClusterResolver::from_environment();
  EXPECT_EQ(resolver->task(), (TaskId{"worker", 0}));
  EXPECT_EQ(resolver->cluster_spec(),
            (ClusterSpec{{"chief", {"n1:21000"}}, {"worker", {"n2:21000"}}}));
  // The program's own count before.
  EXPECT_EQ(ClusterResolver::from_environment({{"ps", 1}, {"worker", 1}})->cluster_spec().jobs(),
            (std::vector<std::string>{"ps", "worker"}));
}

TEST_F(FromEnvironment, WrongJobsAndPortsAreRefused) {
  for (const char* const jobs :
       {"worker", "worker=", "worker=-1", "=1", "worker=1,worker=1", "a=1,,b=1"}) {
    set({kSlurmStep, {{"COHORT_TASKS", jobs}}});
    EXPECT_THAT([] { ClusterResolver::from_environment(); },
                throws_error(ErrorCode::invalid_argument, "COHORT_TASKS"))
        << jobs;
  }
  set({kSlurmStep, {{"COHORT_TASKS", "worker=3"}}});
  EXPECT_THAT([] { ClusterResolver::from_environment(); },
              throws_error(ErrorCode::failed_precondition, "expected 2 tasks"));
  set({kSlurmStep, {{"COHORT_PORT_BASE", "x"}}});
  EXPECT_THAT([] { ClusterResolver::from_environment(); },
              throws_error(ErrorCode::invalid_argument, "COHORT_PORT_BASE"));
}

}  // namespace
}  // namespace cohort
