// SPDX-License-Identifier: Apache-2.0
// Which tasks a cluster has, and at which addresses (tf.train.ClusterSpec); and which cluster a
// program belongs to, and which task of it this process is (tf.distribute.cluster_resolver).
//
//   ClusterSpec spec{{"worker", {"a:2222", "b:2222"}}, {"ps", {"c:2222"}}};
//   spec.task_address("worker", 1);  // "b:2222"
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cohort/core/export.h"

namespace cohort {

// The name of one task of a cluster: "worker:1". A value type. Orders by job, then by index.
struct COHORT_API TaskId {
  std::string job;
  std::int64_t index = 0;

  // Reads what to_string() returns. Throws invalid_argument for any other text.
  static TaskId parse(std::string_view text);
  std::string to_string() const { return job + ":" + std::to_string(index); }
  friend std::ostream& operator<<(std::ostream& out, const TaskId& id) {
    return out << id.to_string();
  }

  auto operator<=>(const TaskId&) const = default;
};

}  // namespace cohort

template <>
struct std::hash<cohort::TaskId> {
  std::size_t operator()(const cohort::TaskId& task) const noexcept {
    return std::hash<std::string>()(task.job) * 31 + std::hash<std::int64_t>()(task.index);
  }
};

namespace cohort {

// A value type; specs are equal if their content is. Accepts any job names and addresses: Server
// and ParameterServerStrategy check them. Thread-compatible.
class COHORT_API ClusterSpec {
 public:
  // Address by index; indices may be missing.
  using Tasks = std::map<std::int64_t, std::string>;

  ClusterSpec() = default;
  explicit ClusterSpec(const std::map<std::string, std::vector<std::string>>& jobs);
  // Throws invalid_argument if a job appears twice.
  ClusterSpec(std::initializer_list<std::pair<const std::string, std::vector<std::string>>> jobs);
  // For jobs whose indices are not 0..n-1. Throws invalid_argument if an index is negative or above
  // 999999.
  static ClusterSpec from_tasks(std::map<std::string, Tasks> jobs);
  // Reads {"worker": ["host:port", …]} or {"worker": {"0": "host:port", …}}. Errors name the text
  // `where`.
  static ClusterSpec from_json(std::string_view text, std::string_view where = "the cluster");

  // The names of the jobs, sorted.
  std::vector<std::string> jobs() const;
  // Whether there is any job.
  explicit operator bool() const { return !jobs_.empty(); }
  bool has_task(const std::string& job, std::int64_t index) const;

  // These throw invalid_argument for an unknown job; the message lists the known ones.
  std::int64_t num_tasks(const std::string& job) const;
  std::vector<std::int64_t> task_indices(const std::string& job) const;
  // The addresses up to the largest index; nullopt for an index without a task.
  std::vector<std::optional<std::string>> job_tasks(const std::string& job) const;
  // Also throws invalid_argument for an unknown index.
  const std::string& task_address(const std::string& job, std::int64_t index) const;

  // All addresses, by job and index.
  const std::map<std::string, Tasks>& tasks() const { return jobs_; }
  // tf's as_dict(): each job is a list if its indices are 0..n-1, else an object; an empty job is
  // {}. from_json() reads it.
  std::string to_json() const;
  std::string to_string() const { return to_json(); }
  friend std::ostream& operator<<(std::ostream& out, const ClusterSpec& spec) {
    return out << spec.to_string();
  }

  bool operator==(const ClusterSpec&) const = default;

 private:
  const Tasks& tasks_of(const std::string& job) const;

  std::map<std::string, Tasks> jobs_;
};

// The task that a query is about. An unset field means that of this process's task.
struct TaskQuery {
  std::optional<std::string> task_type = {};
  std::optional<std::int64_t> task_id = {};
  std::optional<std::string> rpc_layer = {};
};

// Lists devices, for example "/job:worker/task:0/device:GPU:1" or "/device:GPU:1".
using DeviceLister = std::function<std::vector<std::string>()>;

// Thread-compatible: queries may run concurrently, but not while a setter of a subclass runs.
class COHORT_API ClusterResolver {
 public:
  virtual ~ClusterResolver() = default;

  // The resolver of what has started this process. The first of these whose variables are set:
  //
  //  tf_config   TF_CONFIG                                    TfConfigResolver
  //  torchrun    TORCHELASTIC_RUN_ID, as torchrun sets it     TorchrunResolver
  //  mpi         OMPI_COMM_WORLD_SIZE (Open MPI)              MpiResolver
  //  slurm       SLURM_STEP_NUM_TASKS, in a step of srun's    SlurmResolver
  //  mpi         PMI_RANK and PMI_SIZE (MPICH, Intel MPI)     MpiResolver
  //  torchrun    RANK and WORLD_SIZE, set by something else   TorchrunResolver
  //  dmlc        DMLC_ROLE                                    DmlcResolver
  //  sagemaker   SM_HOSTS                                     SageMakerResolver
  //
  // So the innermost counts: torchrun and mpirun are often started by srun. The variable
  // COHORT_CLUSTER_RESOLVER forces one by its name, or "none". If another one's variables tell of
  // another cluster, a warning names both. Without any, or with "none", the cluster is empty, and
  // this process works alone.
  //
  // `jobs`: how many tasks each job has, sorted by name, where processes have ranks alone (slurm,
  // torchrun, mpi); empty: as COHORT_TASKS says ("chief=1,ps=1,worker=2"), or else all are workers.
  // Throws what the constructors of the resolvers throw, and invalid_argument for an unknown name.
  static std::unique_ptr<ClusterResolver> from_environment(
      const std::map<std::string, std::int64_t>& jobs = {});

  virtual ClusterSpec cluster_spec() const = 0;
  // This process's task, as far as it is known.
  virtual std::optional<std::string> task_type() const = 0;
  virtual std::optional<std::int64_t> task_id() const = 0;
  virtual std::optional<std::string> rpc_layer() const = 0;
  virtual std::optional<std::string> environment() const = 0;
  // The address to connect to, after "layer://" if the RPC layer is known; may be empty.
  virtual std::string master(const TaskQuery& query = {}) const = 0;
  // The number of devices other than CPUs, by type, for example {"GPU": 2}.
  virtual std::map<std::string, int> num_accelerators(const TaskQuery& query = {}) const = 0;

  // Throws invalid_argument for mistakes that the queries above ignore, as tf does. Called before
  // this process serves or connects.
  virtual void validate() const {}

  // This process's task, if its type and index are known. Throws invalid_argument if the index is
  // negative.
  std::optional<TaskId> task() const;
  // Whether this process is a server (a worker or ps task): then it should run
  // Server(resolver).join() and nothing else. Calls validate(), and logs a warning if the cluster
  // has jobs but the type of this process's task is unknown.
  bool is_server() const;
};

// A cluster that the program provides (tf.distribute.cluster_resolver.SimpleClusterResolver).
// Thread-compatible.
class COHORT_API SimpleResolver final : public ClusterResolver {
 public:
  struct Options {
    std::string master = {};
    std::optional<std::string> task_type = {};
    std::optional<std::int64_t> task_id = {};
    std::optional<std::string> environment = {};
    std::map<std::string, int> num_accelerators = {};
    std::optional<std::string> rpc_layer = {};
  };

  explicit SimpleResolver(ClusterSpec spec);
  SimpleResolver(ClusterSpec spec, Options options);

  ClusterSpec cluster_spec() const override { return spec_; }
  std::optional<std::string> task_type() const override { return options_.task_type; }
  std::optional<std::int64_t> task_id() const override { return options_.task_id; }
  std::optional<std::string> rpc_layer() const override { return options_.rpc_layer; }
  std::optional<std::string> environment() const override { return options_.environment; }
  // The task's address if type and index are both known, else Options::master.
  std::string master(const TaskQuery& query = {}) const override;
  // Options::num_accelerators, for every task.
  std::map<std::string, int> num_accelerators(const TaskQuery& query = {}) const override;

  void set_task_type(std::optional<std::string> type) { options_.task_type = std::move(type); }
  void set_task_id(std::optional<std::int64_t> id) { options_.task_id = id; }
  void set_rpc_layer(std::optional<std::string> layer) { options_.rpc_layer = std::move(layer); }

 private:
  ClusterSpec spec_;
  Options options_;
};

// The cluster from the environment variable TF_CONFIG
// (tf.distribute.cluster_resolver.TFConfigClusterResolver):
//
//  {"cluster": {"chief": ["h0:2222"], "worker": ["h1:2222", "h2:2222"], "ps": ["h3:2222"]},
//   "task": {"type": "worker", "index": 1}}
//
// Optional keys: "rpc_layer", "session_master". Other keys are ignored. An unset variable means {}.
// An index is converted by the rules of Python's int(), as in tf: "1" and 1.0 become 1; so do true
// and 1.5, with a warning that names the value.
//
// Every query reads the variable again. So the queries, not the constructor, throw
// invalid_argument, naming the key, the value and the remedy. Thread-compatible: nothing may change
// the environment during a query.
class COHORT_API TfConfigResolver final : public ClusterResolver {
 public:
  // A value that is set here, or by a setter, overrides TF_CONFIG.
  struct Options {
    std::optional<std::string> task_type = {};
    std::optional<std::int64_t> task_id = {};
    std::optional<std::string> rpc_layer = {};
    std::optional<std::string> environment = {};
    DeviceLister devices = {};  // empty: the GPUs of this process
  };

  TfConfigResolver();
  explicit TfConfigResolver(Options options);

  ClusterSpec cluster_spec() const override;
  std::optional<std::string> task_type() const override;
  std::optional<std::int64_t> task_id() const override;
  std::optional<std::string> rpc_layer() const override;
  std::optional<std::string> environment() const override { return options_.environment; }
  // "session_master" if it is set; else empty for a cluster of at most one task; else the address
  // of the task.
  std::string master(const TaskQuery& query = {}) const override;
  std::map<std::string, int> num_accelerators(const TaskQuery& query = {}) const override;
  // Checks that TF_CONFIG and its "task" are objects, and that a task with an index has a type.
  // Without a type, the process would be taken for the coordinator.
  void validate() const override;

  void set_task_type(std::optional<std::string> type) { options_.task_type = std::move(type); }
  void set_task_id(std::optional<std::int64_t> id) { options_.task_id = id; }
  void set_rpc_layer(std::optional<std::string> layer) { options_.rpc_layer = std::move(layer); }

 private:
  Options options_;
};

}  // namespace cohort
