// SPDX-License-Identifier: Apache-2.0
// One task's part in a job of version 1: it makes or finds the variables, and calls the servers
// again when a connection, a server, or the job was lost.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "cohort/cluster/cluster_options.h"
#include "cohort/core/clock.h"
#include "cohort/core/error.h"
#include "cohort/core/export.h"
#include "cohort/core/mutex.h"
#include "cohort/strategy/parameter_server_strategy.h"
#include "cohort/v1/job_links.h"
#include "cohort/v1/known_variables.h"
#include "cohort/v1/round_robin.h"
#include "cohort/v1/server_home.h"
#include "cohort/v1/task_role.h"

namespace cohort::detail::v1 {

// The variable that counts the steps of all workers.
inline constexpr const char* kGlobalStep = "global_step";

struct JobOptions {
  ClusterOptions cluster = {};
  Partitioner partitioner = {};
  bool begins_new_job = false;
};
// A variable that a program makes.
struct WantedVariable {
  std::string name;
  TensorSpec spec = {};
  bool is_trainable = true;
  at::Tensor initial = {};
  std::optional<std::string> beside = {};  // the name of another one
};
// Restores what the chief has saved last, and returns its step; nullopt if nothing was saved.
using RestoreJob = std::function<std::optional<std::int64_t>()>;

// Thread-safe. In the chief, one thread restores the servers after the loss of one; meanwhile calls
// wait. In other tasks, calls wait for the chief. Many methods because making, finding and
// restoring variables share one state.
class COHORT_API Job {
 public:
  Job(TaskRole role, JobOptions options);
  ~Job();
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  // No call waits any more, and later ones throw failed_precondition.
  void end() noexcept;

  const TaskRole& role() const { return role_; }
  ServerHome& home() const { return *home_; }
  const KnownVariables& known() const { return known_; }

  // Connects, and makes or finds these variables: all or none. Returns their values. In the chief,
  // a variable that the job has already keeps its value. Other tasks wait for the chief. Throws
  // invalid_argument if the job has a variable of such a name and another shape or dtype, or one
  // that is not as trainable; unavailable if servers or the chief are missing after
  // ClusterOptions::timeout.
  std::vector<at::Tensor> add(std::span<const WantedVariable> wanted);
  // Calls it, and again if a connection was lost; after the loss of a server, or of the job, waits
  // until the chief has restored the variables. Also calls it again if another job began meanwhile,
  // since it may have used values of both. Throws other errors, and unavailable after
  // ClusterOptions::data_timeout.
  void call(const std::function<void()>& body);
  // Calls it for a save, which is of the step of the last call(). Throws aborted if the variables
  // were restored since, or meanwhile: they are of an earlier step.
  void save(const std::function<void()>& body);
  // In the chief: the others may train from now on.
  void let_others_train();
  // In a chief that has joined a job: that job's values are newer than what was saved, until this
  // one trains. In other tasks always.
  bool keeps_newer_values() const;
  void note_run() { has_run_ = true; }
  // Calls it at once if variables were restored before this start of the chief let others train:
  // then their values are the initial ones.
  void restore_with(RestoreJob restore);
  // For the log: the number of steps that the job has made, as far as this task knows.
  void note_step(std::int64_t step) { last_step_ = step; }

 private:
  // The events for which threads wait. Connections share it, since they may outlive the job.
  struct Watch {
    Mutex mutex;
    Condition changed;
    bool is_ended COHORT_GUARDED_BY(mutex) = false;
    bool has_lost_connection COHORT_GUARDED_BY(mutex) = false;
    bool is_restoring COHORT_GUARDED_BY(mutex) = false;
    std::optional<Error> failure COHORT_GUARDED_BY(mutex) = {};
  };
  void open();
  void open_as_chief(Deadline deadline);
  // Returns false if nobody has trained in that job yet: its chief may not have restored it.
  bool join_as_chief(std::uint64_t job, Deadline deadline);
  // Joins a job other than this one, whose chief lets others train. Returns false at the deadline.
  bool join_ready_job(std::uint64_t other_than, Deadline deadline);
  void find_again();
  bool pause(Duration duration) const;
  rpc::SharedVariable check_found(const WantedVariable& wanted, rpc::SharedVariable found) const;
  void find_variables(std::span<const WantedVariable> wanted);
  std::vector<rpc::SharedVariable> place(std::span<const WantedVariable> wanted)
      COHORT_REQUIRES(creating_);
  void make_variables(std::span<const WantedVariable> wanted);
  void create(const std::vector<rpc::SharedVariable>& entries) const;
  void upload(const std::vector<KnownVariable>& variables) const;
  // Returns the job whose variables may be used.
  std::uint64_t wait_for_restore(Deadline deadline) const;
  void set_restoring(bool is_restoring) const;
  // Negative: the step is not known.
  static void say_fallback(const std::string& values, std::int64_t from, std::int64_t to);
  void say_where_training_goes_on();
  void follow(std::uint64_t job, Deadline deadline, const Error& loss);
  void follow_as_chief(std::uint64_t job, Deadline deadline, const Error& loss);
  void watch_servers();
  bool has_lost_server() const;
  void restore_until_it_works();
  void restore_all(const std::string& lost);
  std::string lost_servers() const;

  const TaskRole role_;
  const JobOptions options_;
  const std::shared_ptr<Watch> watch_ = std::make_shared<Watch>();
  JobLinks links_;
  const std::shared_ptr<ServerHome> home_;
  KnownVariables known_;
  Mutex opening_;  // held while a thread connects for the first time, or joins another job
  std::atomic<bool> is_open_ = false;
  Mutex creating_;  // variables are made one after the other
  RoundRobin round_robin_ COHORT_GUARDED_BY(creating_);
  std::uint64_t last_id_ COHORT_GUARDED_BY(creating_) = 0;
  std::atomic<bool> has_joined_ = false;  // a chief found the job, and its values are there still
  std::atomic<bool> has_run_ = false;
  std::atomic<bool> lets_others_train_ = false;
  std::atomic<bool> begins_after_loss_ = false;  // and the log has not said where training goes on
  std::atomic<std::uint64_t> job_of_call_ = 0;   // of the last one that succeeded
  std::atomic<std::int64_t> last_step_ = -1;
  mutable Mutex restore_mutex_;
  RestoreJob restore_ COHORT_GUARDED_BY(restore_mutex_);
  bool has_missed_restore_ COHORT_GUARDED_BY(restore_mutex_) = false;
  std::thread watcher_;  // the chief's
};

}  // namespace cohort::detail::v1
