// SPDX-License-Identifier: Apache-2.0
// Where and how an Estimator trains: the task of this process, the strategies, what is saved and
// when (tf.estimator.RunConfig).
//
//   const estimator::RunConfig config({.model_dir = "model", .train_distribute = &strategy});
//   config.task_type();  // "worker", from TF_CONFIG
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cohort/cluster/cluster_resolver.h"
#include "cohort/core/clock.h"
#include "cohort/core/export.h"

namespace cohort {
class Strategy;  // strategy/strategy.h
}

namespace cohort::estimator {

// Who coordinates the tasks (tf.distribute's CoordinatorMode).
enum class CoordinatorMode : std::uint8_t {
  // Nobody: this process alone, or each task plays its part by the rules of a cluster with a chief.
  none,
  independent_worker,  // each task runs the program, and a strategy connects them
  // One client drives tasks that run no program. train_and_evaluate() refuses it.
  standalone_client,
};

// The strategies by their other name (tf.contrib.distribute.DistributeConfig).
struct DistributeConfig {
  Strategy* train_distribute = nullptr;
  Strategy* eval_distribute = nullptr;
  std::optional<ClusterSpec> remote_cluster = {};
};

// The options of tf.estimator.RunConfig that have a meaning here; those of sessions and graphs have
// none.
struct RunConfigOptions {
  // Checkpoints, summaries and exports. Empty: "model_dir" of TF_CONFIG, else a new folder for
  // temporary files, with a warning.
  std::string model_dir = {};
  // Seeds LibTorch's default generator before the model is made (tf_random_seed). Not set: it stays
  // as the program has seeded it.
  std::optional<std::uint64_t> random_seed = 1;
  std::int64_t save_summary_steps = 100;  // steps between two points of a curve; 0: no summaries
  // Steps or time between two checkpoints, of which only one may be set (save_checkpoints_secs).
  // Neither: 600 s. Zero: there are no checkpoints.
  std::optional<std::int64_t> save_checkpoints_steps = {};
  std::optional<Duration> save_checkpoints_interval = {};
  std::int64_t keep_checkpoint_max = 5;  // 0: all
  // Beside those, one for each such time stays for ever; zero: none (keep_checkpoint_every_n_hours,
  // which is 10,000 h in tf).
  Duration keep_checkpoint_every = Duration::zero();
  std::int64_t log_step_count_steps = 100;  // steps between two lines of the log, > 0
  // How long an evaluator waits for the first checkpoint (session_creation_timeout_secs). > 0.
  Duration session_creation_timeout = std::chrono::seconds(7200);
  // Asynchronous workers begin one after the other, each 5 s later than the one before, and at most
  // this late (experimental_max_worker_delay_secs). Not set: 60 s.
  std::optional<Duration> max_worker_delay = {};
  // The strategy that trains, and the one that evaluates; both outlive the Estimator. Not set:
  // OneDeviceStrategy, and Estimator::evaluate() says which evaluates.
  Strategy* train_distribute = nullptr;
  Strategy* eval_distribute = nullptr;
  DistributeConfig experimental_distribute = {};
  // The cluster and the task of this process. Not set: those of train_distribute, else of
  // TF_CONFIG.
  std::shared_ptr<const ClusterResolver> cluster_resolver = {};
  Clock* clock = nullptr;  // for all waits and intervals; nullptr: the machine's
};

// A value type. Immutable. Many methods because it has the properties of tf.estimator.RunConfig.
class COHORT_API RunConfig {
 public:
  // Reads TF_CONFIG. Throws invalid_argument, naming the key or option, for
  // - a cluster without exactly one "chief" (or, by its older name, "master"), a task without type
  //   or index, an index that is negative or not in the cluster, both chief and master, and an
  //   evaluator beside a master: where no strategy coordinates the tasks;
  // - a task other than worker 0 without a cluster;
  // - "service" that is no object (ErrorCause::wrong_type), "eval_session_master" in a task that is
  //   no evaluator, an empty or another "model_dir" than the option;
  // - options out of their range, checkpoints by steps and by time, one strategy given twice, a
  //   remote_cluster beside a cluster of TF_CONFIG or without a strategy that trains.
  // Throws failed_precondition inside run().
  explicit RunConfig(RunConfigOptions options = {});

  const RunConfigOptions& options() const { return options_; }
  const std::string& model_dir() const { return options_.model_dir; }
  CoordinatorMode coordinator_mode() const { return mode_; }

  // The tasks that train. Empty for an evaluator, which is no part of it, and without a cluster.
  const ClusterSpec& cluster_spec() const { return cluster_; }
  const std::string& task_type() const { return task_.job; }
  std::int64_t task_id() const { return task_.index; }
  // Whether this task saves checkpoints and summaries.
  bool is_chief() const { return is_chief_; }
  // "session_master" of TF_CONFIG; else "grpc://" and the address of this task; empty for an
  // evaluator, for a cluster of one task and without a cluster.
  const std::string& master() const { return master_; }
  const std::string& evaluation_master() const { return evaluation_master_; }
  std::int64_t num_ps_replicas() const { return num_ps_; }
  std::int64_t num_worker_replicas() const { return num_workers_; }  // the chief is one of them
  // The place among all tasks: the chief is 0, then come the other jobs by name, and "ps" is last.
  // nullopt for an evaluator.
  std::optional<std::int64_t> global_id_in_cluster() const { return global_id_; }
  // "service" of TF_CONFIG as JSON.
  const std::optional<std::string>& service() const { return service_; }
  // The tasks with which this one exchanges values, as tf writes them: "/job:ps",
  // "/job:worker/task:1". Empty: no limit. Cohort's tasks connect as their strategy needs it.
  std::vector<std::string> device_filters() const;

  // The strategies, from wherever they were given; nullptr: none.
  Strategy* train_distribute() const { return options_.train_distribute; }
  Strategy* eval_distribute() const { return options_.eval_distribute; }
  Clock& clock() const;
  // Time between two checkpoints; nullopt if steps count, or there are none.
  std::optional<Duration> save_checkpoints_interval() const;
  bool saves_checkpoints() const;
  Duration max_worker_delay() const;

 private:
  // The keys that TF_CONFIG has besides cluster and task.
  struct Keys;
  void check_options() const;
  void merge_strategies();
  void choose_mode(const ClusterSpec& cluster);
  void set_model_dir(const Keys& keys);
  void set_task(const ClusterSpec& cluster, const ClusterResolver& resolver, const Keys& keys);
  void set_coordinated_task(const ClusterSpec& cluster);
  void set_local_task(const Keys& keys);
  void set_cluster_task(const ClusterSpec& cluster, const Keys& keys);
  void set_evaluator();

  RunConfigOptions options_;
  CoordinatorMode mode_ = CoordinatorMode::none;
  ClusterSpec cluster_;
  TaskId task_ = {"worker", 0};
  bool is_chief_ = true;
  std::string master_;
  std::string evaluation_master_;
  std::int64_t num_ps_ = 0;
  std::int64_t num_workers_ = 1;
  std::optional<std::int64_t> global_id_ = 0;
  std::optional<std::string> service_;
};

}  // namespace cohort::estimator
