// SPDX-License-Identifier: Apache-2.0
// The coordinator's connections to the tasks of its cluster.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "cohort/cluster/cluster_spec.h"
#include "cohort/core/mutex.h"
#include "cohort/rpc/connection.h"

namespace cohort {

struct ClusterOptions {
  Duration timeout =
      std::chrono::seconds(60);  // of control calls; and until every task must have appeared
  Duration data_timeout =
      std::chrono::minutes(5);  // of pulls and pushes, this process's and the workers'
  std::string job_id = {};      // empty: a hash of the cluster spec
  std::uint64_t seed = 0;       // of initial values and of every closure's randomness
  std::string backend = {};     // of the data plane; empty: the servers' first choice
  // Also between the workers and the parameter servers.
  rpc::PayloadChecksums payload_checksums = rpc::PayloadChecksums::between_hosts;
};

// Thread-safe.
class COHORT_API ClusterConnection {
 public:
  // A worker's connections are numbered, so that what a lost one still says can be told from its
  // successor's words.
  struct WorkerLink {
    rpc::Connection connection;
    std::uint64_t epoch = 0;
  };
  struct WorkerHandlers {
    std::function<void(std::uint32_t worker, std::uint64_t epoch, rpc::Frame frame)> on_frame;
    std::function<void(std::uint32_t worker, std::uint64_t epoch, const Error& reason)> on_lost;
    // The connection to a parameter server ended, for this reason; ps() makes it again.
    std::function<void(const Error& reason)> on_ps_lost;
  };

  ClusterConnection(ClusterSpec spec, std::string self_task, ClusterOptions options);
  ~ClusterConnection();

  std::uint32_t num_workers() const { return static_cast<std::uint32_t>(workers_.size()); }
  std::uint32_t num_ps() const { return static_cast<std::uint32_t>(ps_.size()); }
  const ClusterOptions& options() const { return options_; }
  std::uint64_t incarnation() const { return self_.incarnation; }
  const rpc::Identity& self() const { return self_; }
  Deadline control_deadline() const { return Deadline::after(options_.timeout); }
  Deadline data_deadline() const { return Deadline::after(options_.data_timeout); }

  // Connects to every parameter server, once. Unavailable after `timeout`, naming exactly the tasks
  // that are missing.
  void connect_ps();
  // The same for the workers and what is missing of the parameter servers, all at once. Workers get
  // new connections, for these handlers: those of an earlier coordinator are closed.
  void connect_workers(const WorkerHandlers& handlers);
  // Connects to a lost worker again; tries until `deadline` or should_stop.
  WorkerLink reconnect_worker(std::uint32_t worker, Deadline deadline,
                              const std::function<bool()>& should_stop);
  WorkerLink worker(std::uint32_t worker) const;
  // Connects again after a loss. handle_lost when the server was restarted: its variables are gone.
  rpc::Connection ps(std::uint32_t ps);

 private:
  struct Task {
    std::string name;
    std::string address;
    std::uint32_t index = 0;
    bool is_worker = false;
  };
  // Hands on the ends of connections to parameter servers, which may outlive this object and are
  // made before anybody wants to know. Thread-safe.
  class PsWatch {
   public:
    void set(std::function<void(const Error&)> on_lost);
    void lost(const Error& reason) const;

   private:
    mutable Mutex mutex_;
    std::function<void(const Error&)> on_lost_ COHORT_GUARDED_BY(mutex_);
  };
  using TaskList = std::vector<const Task*>;
  static std::vector<Task> tasks_of(const ClusterSpec& spec, const std::string& job);
  rpc::ConnectionOptions options_for(const Task& task, std::uint64_t epoch,
                                     Deadline deadline) const;
  rpc::Connection connect_to(const Task& task, const rpc::ConnectionOptions& options);
  std::uint64_t epoch_of(const Task& task) const;
  void add_missing_ps(TaskList& missing) const COHORT_REQUIRES(mutex_);
  rpc::Connection& connection_of(const Task& task) COHORT_REQUIRES(mutex_);
  void connect(const TaskList& missing);
  // Names of tasks, joined: those that do not answer at all, those that do but not where tensors
  // go, and those of the first whose host refuses connections.
  struct Unanswered {
    std::string silent;
    std::string without_data;
    std::string refused;
  };
  void throw_if_unanswered(const Unanswered& tasks) const;

  const ClusterOptions options_;
  const ClusterSpec spec_;
  const std::vector<Task> workers_;
  const std::vector<Task> ps_;
  const rpc::Identity self_;
  const std::shared_ptr<PsWatch> ps_watch_ = std::make_shared<PsWatch>();  // with connections
  Mutex connecting_;  // one start-up or reconnection of a ps at a time
  mutable Mutex mutex_;
  // By index; without data: never connected.
  std::vector<WorkerLink> worker_links_ COHORT_GUARDED_BY(mutex_);
  std::vector<rpc::Connection> ps_connections_ COHORT_GUARDED_BY(mutex_);
  WorkerHandlers handlers_ COHORT_GUARDED_BY(mutex_);
  std::set<std::string> met_ COHORT_GUARDED_BY(mutex_);  // tasks that have been reached before
  std::uint64_t start_order_ COHORT_GUARDED_BY(mutex_);  // HandshakeRequest's
};

}  // namespace cohort
