// SPDX-License-Identifier: Apache-2.0
// The variables by which launchers tell a process of its cluster, for tests.
#pragma once

#include <cstdlib>
#include <initializer_list>
#include <map>
#include <optional>
#include <string>
#include <utility>

namespace cohort::testing {

// Without any of them at first; its destructor restores what was there. Used only from one thread,
// while no other reads the environment.
class LauncherEnvironment {
 public:
  LauncherEnvironment() {
    for (const char* const name : kNames) {
      const char* const text = std::getenv(name);
      before_[name] = text == nullptr ? std::nullopt : std::optional<std::string>(text);
    }
    clear();
  }
  ~LauncherEnvironment() {
    for (const auto& [name, text] : before_)
      text ? ::setenv(name.c_str(), text->c_str(), 1) : ::unsetenv(name.c_str());
  }
  LauncherEnvironment(const LauncherEnvironment&) = delete;
  LauncherEnvironment& operator=(const LauncherEnvironment&) = delete;

  static void clear() {
    for (const char* const name : kNames) ::unsetenv(name);
  }
  using Variables = std::map<std::string, std::string>;
  static void set(const Variables& variables) {
    for (const auto& [name, text] : variables) ::setenv(name.c_str(), text.c_str(), 1);
  }

 private:
  static constexpr const char* kNames[] = {"TF_CONFIG",
                                           "COHORT_CLUSTER_RESOLVER",
                                           "COHORT_TASKS",
                                           "COHORT_OWN_HOST",
                                           "COHORT_PORT_BASE",
                                           "COHORT_JOB_ID",
                                           "RANK",
                                           "WORLD_SIZE",
                                           "LOCAL_RANK",
                                           "MASTER_ADDR",
                                           "MASTER_PORT",
                                           "TORCHELASTIC_RUN_ID",
                                           "TORCHELASTIC_RESTART_COUNT",
                                           "TORCHELASTIC_USE_AGENT_STORE",
                                           "OMPI_COMM_WORLD_RANK",
                                           "OMPI_COMM_WORLD_SIZE",
                                           "OMPI_COMM_WORLD_LOCAL_SIZE",
                                           "PMI_RANK",
                                           "PMI_SIZE",
                                           "MPI_LOCALNRANKS",
                                           "PMIX_RANK",
                                           "SLURM_JOB_ID",
                                           "SLURM_PROCID",
                                           "SLURM_STEP_NUM_TASKS",
                                           "SLURM_STEP_NODELIST",
                                           "SLURM_STEP_TASKS_PER_NODE",
                                           "SLURM_NTASKS",
                                           "SLURM_JOB_NODELIST",
                                           "SLURM_TASKS_PER_NODE",
                                           "SLURMD_NODENAME",
                                           "SLURM_NODEID",
                                           "SLURM_LOCALID",
                                           "SLURM_GPUS_PER_TASK",
                                           "CUDA_VISIBLE_DEVICES",
                                           "DMLC_ROLE",
                                           "DMLC_PS_ROOT_URI",
                                           "DMLC_PS_ROOT_PORT",
                                           "DMLC_NUM_SERVER",
                                           "DMLC_NUM_WORKER",
                                           "DMLC_SERVER_ID",
                                           "DMLC_WORKER_ID",
                                           "SM_HOSTS",
                                           "SM_CURRENT_HOST"};
  std::map<std::string, std::optional<std::string>> before_;
};

}  // namespace cohort::testing
