// SPDX-License-Identifier: Apache-2.0
// Resolvers for processes whose launcher gives them ranks, but no list of addresses: mpirun,
// torchrun, and trackers of MXNet's kind (DMLC). The processes tell each other where they listen.
//
//   MpiResolver resolver({.jobs = {{"chief", 1}, {"ps", 1}, {"worker", 2}}});  // mpirun -n 4 …
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "cohort/cluster/cluster_resolver.h"
#include "cohort/core/clock.h"
#include "cohort/core/export.h"

namespace cohort {

struct LauncherOptions {
  // The number of tasks of each job. The jobs, sorted by name, get consecutive ranks. Empty: all
  // tasks are workers. An evaluator has a rank, but is not in the cluster.
  std::map<std::string, std::int64_t> jobs = {};
  // The name or the number by which the others reach this host. Empty: the environment variable
  // COHORT_OWN_HOST, or else the address from which this host reaches the place where all meet.
  std::string host = {};
  // Until all processes must have told their addresses.
  Duration timeout = std::chrono::minutes(1);
  std::optional<std::string> rpc_layer = "grpc";
};

// The common part of these resolvers. The constructor reads the variables of the launcher and
// throws failed_precondition or invalid_argument, naming them. The first query of the cluster, by
// any object of this process, reserves a free port of this host and waits until all processes of
// the job have come: all must ask. It throws deadline_exceeded or unavailable, saying who is
// missing and what to do. Thread-compatible.
class COHORT_API LauncherResolver : public ClusterResolver {
 public:
  ClusterSpec cluster_spec() const final;
  std::optional<std::string> task_type() const final;
  std::optional<std::int64_t> task_id() const final;
  std::optional<std::string> rpc_layer() const final { return options_.rpc_layer; }
  std::optional<std::string> environment() const final { return ""; }
  // The address of the query's task.
  std::string master(const TaskQuery& query = {}) const final;
  // The GPUs of this process.
  std::map<std::string, int> num_accelerators(const TaskQuery& query = {}) const final;

 protected:
  // `size`: the number of processes. Throws failed_precondition if the jobs have another sum.
  LauncherResolver(LauncherOptions options, const char* launcher, std::int64_t size);

  // The place of this process among all; may wait for the others.
  virtual std::int64_t rank() const = 0;
  // All addresses, by rank; waits for the others.
  virtual std::vector<std::string> addresses() const = 0;

  const LauncherOptions& options() const { return options_; }

 private:
  LauncherOptions options_;
};

// The processes that an MPI launcher has started. Ranks come from Open MPI's variables
// (OMPI_COMM_WORLD_RANK and OMPI_COMM_WORLD_SIZE), from MPICH's and Intel's (PMI_RANK and
// PMI_SIZE), or from PMIx under Slurm (PMIX_RANK and SLURM_STEP_NUM_TASKS).
//
// Addresses are exchanged by MPI itself, which is begun and ended for that, unless the program has
// begun it; MultiWorkerMirroredStrategy on GroupBackend::mpi begins it first. Where MASTER_ADDR and
// MASTER_PORT are set, they are exchanged there as by TorchrunResolver, without MPI. So it is also
// in a library that was built without MPI, or with another one than the launcher's.
class COHORT_API MpiResolver final : public LauncherResolver {
 public:
  explicit MpiResolver(LauncherOptions options = {});

 protected:
  std::int64_t rank() const override { return rank_; }
  std::vector<std::string> addresses() const override;

 private:
  std::int64_t rank_ = 0;
  std::int64_t size_ = 0;
};

// The processes that torchrun has started (torch.distributed's env:// method): RANK, WORLD_SIZE,
// MASTER_ADDR and MASTER_PORT. Addresses are exchanged in a c10d::TCPStore: that of torchrun's
// agent (TORCHELASTIC_USE_AGENT_STORE), or one that rank 0 opens while the processes meet.
//
// The bytes of that store have changed between versions of LibTorch, so torchrun must be of the
// version that Cohort is built with; the error after the timeout says so.
class COHORT_API TorchrunResolver final : public LauncherResolver {
 public:
  explicit TorchrunResolver(LauncherOptions options = {});

 protected:
  std::int64_t rank() const override { return rank_; }
  std::vector<std::string> addresses() const override;

 private:
  std::int64_t rank_ = 0;
  std::int64_t size_ = 0;
};

// The processes of a job with DMLC's variables (MXNet, ps-lite, BytePS): DMLC_ROLE is scheduler,
// server or worker, which become chief, ps and worker; DMLC_NUM_SERVER and DMLC_NUM_WORKER are
// their numbers. The scheduler opens a c10d::TCPStore at DMLC_PS_ROOT_URI and DMLC_PS_ROOT_PORT,
// where all tell their addresses. A server or worker has the index of DMLC_SERVER_ID or
// DMLC_WORKER_ID, or else the next one in the order of arrival. LauncherOptions::jobs must be
// empty.
class COHORT_API DmlcResolver final : public LauncherResolver {
 public:
  explicit DmlcResolver(LauncherOptions options = {});

 protected:
  std::int64_t rank() const override;
  std::vector<std::string> addresses() const override;

 private:
  // The ranks of the role.
  std::int64_t rank_min() const;
  std::int64_t rank_max() const;

  std::string role_;                   // the job
  std::optional<std::int64_t> index_;  // unset: given by the scheduler
  std::int64_t servers_ = 0;
  std::int64_t workers_ = 0;
};

}  // namespace cohort
