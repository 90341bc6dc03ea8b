// SPDX-License-Identifier: Apache-2.0
// Resolvers that read the cluster from what has started the processes
// (tf.distribute.cluster_resolver): Slurm, Kubernetes, Google Compute Engine, SageMaker; and the
// union of several.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cohort/cluster/cluster_resolver.h"
#include "cohort/core/export.h"

namespace cohort {

// The tasks of several resolvers (tf's UnionResolver), each of which has other jobs, or other tasks
// of one job. Thread-compatible; the resolvers are queried at each query.
//
// Where a job has the indices 0..n-1 in each of them, its tasks come one after the other in the
// order of the resolvers, and so get new indices; otherwise all keep theirs, and cluster_spec()
// throws not_found for an index that two of them have.
class COHORT_API UnionResolver final : public ClusterResolver {
 public:
  // A value that is set here, or by a setter, overrides that of the first resolver. As in tf, an
  // index of 0 and empty text do not.
  struct Options {
    std::optional<std::string> task_type = {};
    std::optional<std::int64_t> task_id = {};
    std::optional<std::string> rpc_layer = {};
    std::optional<std::string> environment = {};
    std::optional<std::map<std::string, int>> num_accelerators = {};
  };

  // Throws invalid_argument for no resolver, and for nullptr.
  explicit UnionResolver(std::vector<std::shared_ptr<const ClusterResolver>> resolvers);
  UnionResolver(std::vector<std::shared_ptr<const ClusterResolver>> resolvers, Options options);

  ClusterSpec cluster_spec() const override;
  std::optional<std::string> task_type() const override;
  std::optional<std::int64_t> task_id() const override;
  std::optional<std::string> rpc_layer() const override;
  std::optional<std::string> environment() const override;
  // The task's address if the query has type and index, else the first resolver's master.
  std::string master(const TaskQuery& query = {}) const override;
  std::map<std::string, int> num_accelerators(const TaskQuery& query = {}) const override;
  void validate() const override;

  void set_task_type(std::optional<std::string> type) { options_.task_type = std::move(type); }
  void set_task_id(std::optional<std::int64_t> id) { options_.task_id = id; }
  void set_rpc_layer(std::optional<std::string> layer) { options_.rpc_layer = std::move(layer); }

 private:
  const ClusterResolver& first() const { return *resolvers_.front(); }

  std::vector<std::shared_ptr<const ClusterResolver>> resolvers_;
  Options options_;
};

// --- Slurm ---------------------------------------------------------------------------------------

// The hosts of a list of Slurm's: "n[01-03,7],m5" has n01, n02, n03, n7 and m5. Zeros in front are
// kept, and so is the order. A name may have several lists in brackets, the last one at its end.
// Throws invalid_argument for other text, and above a million hosts.
COHORT_API std::vector<std::string> expand_slurm_hosts(std::string_view text);
// The numbers of a list such as "3(x2),2": 3, 3, 2. Throws as above.
COHORT_API std::vector<std::int64_t> expand_slurm_tasks(std::string_view text);

struct SlurmResolverOptions {
  // The number of tasks of each job. The jobs, sorted by name, get consecutive ranks. Empty: all
  // tasks are workers. An evaluator has a rank, but is not in the cluster, where tf has it.
  std::map<std::string, std::int64_t> jobs = {};
  // The k-th task of a host has the port port_base + k.
  std::int64_t port_base = 8888;
  // Unset: those in CUDA_VISIBLE_DEVICES, or the GPUs of this process.
  std::optional<std::int64_t> gpus_per_node = {};
  // Unset: gpus_per_node, divided by the largest number of tasks of a host and rounded down. Where
  // Slurm gives each task its own GPUs (--gpus-per-task): those that this task sees.
  std::optional<std::int64_t> gpus_per_task = {};
  // The tasks of each host. Unset, and without tasks_by_host: what Slurm says.
  std::optional<std::int64_t> tasks_per_node = {};
  std::map<std::string, std::int64_t> tasks_by_host = {};
  // Whether the constructor sets CUDA_VISIBLE_DEVICES to the GPUs of this task.
  bool auto_set_gpu = true;
  std::optional<std::string> rpc_layer = "grpc";
};

// The cluster of a job step of Slurm's, whose tasks `srun` has started
// (tf's SlurmClusterResolver). Immutable: the constructor reads the variables SLURM_PROCID,
// SLURM_STEP_NUM_TASKS, SLURM_STEP_NODELIST and SLURM_STEP_TASKS_PER_NODE; without any of the last
// three, those of the whole job: SLURM_NTASKS, SLURM_JOB_NODELIST and SLURM_TASKS_PER_NODE.
//
// Differs from tf, where the hosts are sorted by name, which need not be the order of Slurm's ranks
// (n10 is before n9): where Slurm says on which host this task runs (SLURMD_NODENAME), its own
// order counts. The ranks must fill one host after the other (--distribution=block).
class COHORT_API SlurmResolver final : public ClusterResolver {
 public:
  // Throws failed_precondition, naming them, for variables that are missing or contradict each
  // other or the options, and for too few GPUs; invalid_argument for a value that cannot be read.
  SlurmResolver();
  explicit SlurmResolver(SlurmResolverOptions options);

  ClusterSpec cluster_spec() const override { return spec_; }
  std::optional<std::string> task_type() const override { return task_.job; }
  std::optional<std::int64_t> task_id() const override { return task_.index; }
  std::optional<std::string> rpc_layer() const override { return rpc_layer_; }
  std::optional<std::string> environment() const override { return ""; }
  // The address of the query's task.
  std::string master(const TaskQuery& query = {}) const override;
  // The GPUs of one task: {"GPU": n}; {} without any.
  std::map<std::string, int> num_accelerators(const TaskQuery& query = {}) const override;

 private:
  ClusterSpec spec_;
  TaskId task_;
  std::optional<std::string> rpc_layer_;
  std::int64_t gpus_per_task_ = 0;
};

// --- hosts from a service ------------------------------------------------------------------------

// A pod as the API of Kubernetes reports it.
struct KubernetesPod {
  std::string name;
  std::string phase;    // "Running", "Pending", …
  std::string address;  // the IP of the host or, where pods reach each other by it, of the pod
};

struct KubernetesResolverOptions {
  // For each job the selectors of its pods. The tasks of a job are its pods, those of one selector
  // sorted by name, the selectors in this order.
  std::map<std::string, std::vector<std::string>> selectors = {{"worker", {"job-name=tensorflow"}}};
  // Lists the pods of a selector. The library has no client of Kubernetes': the program, which has
  // the rights to ask, gives one. Called at each query; what it throws is thrown.
  std::function<std::vector<KubernetesPod>(const std::string& selector)> pods = {};
  std::int64_t port = 8470;
  std::optional<std::string> task_type = {};
  std::optional<std::int64_t> task_id = {};
  std::optional<std::string> rpc_layer = "grpc";
};

// The cluster of the pods that have certain labels (tf's KubernetesClusterResolver). Where each pod
// knows its place, as in a TFJob or a StatefulSet, use TfConfigResolver. Thread-compatible.
class COHORT_API KubernetesResolver final : public ClusterResolver {
 public:
  // Throws invalid_argument without a list of pods or for a port out of range.
  explicit KubernetesResolver(KubernetesResolverOptions options);

  // Throws failed_precondition, naming it, if a pod is not running.
  ClusterSpec cluster_spec() const override;
  std::optional<std::string> task_type() const override { return options_.task_type; }
  std::optional<std::int64_t> task_id() const override { return options_.task_id; }
  std::optional<std::string> rpc_layer() const override { return options_.rpc_layer; }
  std::optional<std::string> environment() const override { return ""; }
  // The address of the query's task; empty until type and index are known.
  std::string master(const TaskQuery& query = {}) const override;
  // The GPUs of this process.
  std::map<std::string, int> num_accelerators(const TaskQuery& query = {}) const override;

  void set_task_type(std::optional<std::string> type) { options_.task_type = std::move(type); }
  void set_task_id(std::optional<std::int64_t> id) { options_.task_id = id; }
  void set_rpc_layer(std::optional<std::string> layer) { options_.rpc_layer = std::move(layer); }

 private:
  KubernetesResolverOptions options_;
};

// An instance as the API of Google Compute Engine reports it.
struct GceInstance {
  std::string name;
  std::string status;   // "RUNNING", …
  std::string address;  // its IP in the network of the group
};

struct GceResolverOptions {
  // Lists the instances of the group, all pages. Called at each query; what it throws is thrown.
  std::function<std::vector<GceInstance>()> instances = {};
  std::int64_t port = 0;
  std::string task_type = "worker";  // of all
  std::optional<std::int64_t> task_id = 0;
  std::optional<std::string> rpc_layer = "grpc";
};

// The cluster of the running instances of a group, which are all of one job, sorted by their
// addresses as text (tf's GCEClusterResolver). Thread-compatible.
class COHORT_API GceResolver final : public ClusterResolver {
 public:
  // Throws invalid_argument without a list of instances or for a port out of range.
  explicit GceResolver(GceResolverOptions options);

  ClusterSpec cluster_spec() const override;
  std::optional<std::string> task_type() const override { return options_.task_type; }
  std::optional<std::int64_t> task_id() const override { return options_.task_id; }
  std::optional<std::string> rpc_layer() const override { return options_.rpc_layer; }
  std::optional<std::string> environment() const override { return ""; }
  std::string master(const TaskQuery& query = {}) const override;
  // The GPUs of this process.
  std::map<std::string, int> num_accelerators(const TaskQuery& query = {}) const override;

  // Always throws failed_precondition: the job is that of the constructor, as in tf.
  [[noreturn]] void set_task_type(std::optional<std::string> type);
  void set_task_id(std::optional<std::int64_t> id) { options_.task_id = id; }
  void set_rpc_layer(std::optional<std::string> layer) { options_.rpc_layer = std::move(layer); }

 private:
  GceResolverOptions options_;
};

// The cluster of a training job of SageMaker's, from the variables SM_HOSTS, a JSON list, and
// SM_CURRENT_HOST (tf's SageMakerClusterResolver). The hosts, sorted, are the workers; for
// MultiWorkerMirroredStrategy. Each query reads the variables; the queries throw invalid_argument,
// naming it, for one that is missing or cannot be read. A host that is not in the list has an empty
// cluster. Thread-compatible.
class COHORT_API SageMakerResolver final : public ClusterResolver {
 public:
  // A value that is set here, or by a setter, overrides that of the variables.
  struct Options {
    std::int64_t port = 2223;
    std::optional<std::string> task_type = {};
    std::optional<std::int64_t> task_id = {};
    std::optional<std::string> rpc_layer = {};
    std::optional<std::string> environment = {};
  };
  SageMakerResolver();
  // Throws invalid_argument for a port out of range.
  explicit SageMakerResolver(Options options);

  ClusterSpec cluster_spec() const override;
  std::optional<std::string> task_type() const override;
  std::optional<std::int64_t> task_id() const override;
  std::optional<std::string> rpc_layer() const override { return options_.rpc_layer; }
  std::optional<std::string> environment() const override { return options_.environment; }
  // Empty for a cluster of at most one task, else the address of the query's task.
  std::string master(const TaskQuery& query = {}) const override;
  // The GPUs of this process.
  std::map<std::string, int> num_accelerators(const TaskQuery& query = {}) const override;

  void set_task_type(std::optional<std::string> type) { options_.task_type = std::move(type); }
  void set_task_id(std::optional<std::int64_t> id) { options_.task_id = id; }
  void set_rpc_layer(std::optional<std::string> layer) { options_.rpc_layer = std::move(layer); }

 private:
  Options options_;
};

}  // namespace cohort
