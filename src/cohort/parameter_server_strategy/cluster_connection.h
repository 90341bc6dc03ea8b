// SPDX-License-Identifier: Apache-2.0
// The coordinator's connections to the tasks of its cluster.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "cohort/cluster/cluster_options.h"
#include "cohort/cluster/cluster_resolver.h"
#include "cohort/core/mutex.h"
#include "cohort/parameter_server/server_links.h"
#include "cohort/rpc/connection.h"

namespace cohort {

// For the messages of errors.
inline double seconds_of(Duration duration) {
  return std::chrono::duration<double>(duration).count();
}

// Thread-safe.
class COHORT_API ClusterConnection {
 public:
  // A worker's connections are numbered, so that late messages of a lost connection are not taken
  // for messages of its successor.
  struct WorkerLink {
    rpc::Connection connection;
    std::uint64_t epoch = 0;
  };
  struct WorkerHandlers {
    std::function<void(std::uint32_t worker, std::uint64_t epoch, rpc::Frame frame)> on_frame;
    std::function<void(std::uint32_t worker, std::uint64_t epoch, const Error& reason)> on_lost;
    // Called when the connection to a parameter server ends; ps() reconnects.
    std::function<void(const Error& reason)> on_ps_lost;
    std::uint32_t closures_at_once = 1;  // of each worker
  };

  ClusterConnection(ClusterSpec spec, std::string self_task, ClusterOptions options);
  ~ClusterConnection();

  std::uint32_t num_workers() const { return static_cast<std::uint32_t>(workers_.size()); }
  std::uint32_t num_ps() const { return static_cast<std::uint32_t>(ps_.size()); }
  const ClusterOptions& options() const { return options_; }
  std::uint64_t incarnation() const { return self_.incarnation; }
  const rpc::Identity& self() const { return self_; }
  Deadline control_deadline() const { return Deadline::after(options_.timeout); }

  // Connects to the parameter servers that have no connection yet. Throws unavailable after
  // `timeout`, naming exactly the tasks that are missing.
  void connect_ps();
  // Does the same for the parameter servers and connects to all workers, all at once. Workers get
  // new connections, which call these handlers; the connections of an earlier coordinator are
  // closed.
  void connect_workers(const WorkerHandlers& handlers);
  // Reconnects to a lost worker; retries until `deadline` or until should_stop returns true.
  WorkerLink reconnect_worker(std::uint32_t worker, Deadline deadline,
                              const std::function<bool()>& should_stop);
  WorkerLink worker(std::uint32_t worker) const;
  // The servers have their indices as ids. get() waits until `timeout` for one that may be starting
  // again, and then logs a warning.
  const std::shared_ptr<parameter_server::ServerLinks>& servers() const { return servers_; }
  // Makes the error for users if the connection of servers() is lost.
  rpc::Connection ps(std::uint32_t ps);

 private:
  struct Task {
    std::string name;
    std::string address;
    std::uint32_t index = 0;
    bool is_worker = false;
  };
  // Forwards the loss of connections to parameter servers to a handler that may be set after they
  // are made. Connections share it, since they may outlive the ClusterConnection. Thread-safe.
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
  void add_missing_ps(TaskList& missing) const;
  void keep(const Task& task, rpc::Connection connection);
  rpc::Connection connect_server(const rpc::Member& server);
  // Decides between coordinators that start at the same time.
  const Task& first_task() const { return ps_.empty() ? workers_.front() : ps_.front(); }
  struct StartUp;
  struct Outcome;
  void connect(const TaskList& missing);
  void start_with(const Task& task, StartUp& start, Outcome& outcome);
  static bool await_first_task(const Task& task, StartUp& start);
  void throw_if_failed(const TaskList& missing, const std::vector<Outcome>& outcomes) const;

  const ClusterOptions options_;
  const ClusterSpec spec_;
  const std::vector<Task> workers_;
  const std::vector<Task> ps_;
  const rpc::Identity self_;
  // Shared with the connections.
  const std::shared_ptr<PsWatch> ps_watch_ = std::make_shared<PsWatch>();
  Mutex connecting_;  // held during start-up
  mutable Mutex mutex_;
  // In the order of the task indices; `data` is null before the first connection.
  std::vector<WorkerLink> worker_links_ COHORT_GUARDED_BY(mutex_);
  WorkerHandlers handlers_ COHORT_GUARDED_BY(mutex_);
  std::set<std::string> met_ COHORT_GUARDED_BY(mutex_);  // tasks that have been reached before
  std::uint64_t start_order_ COHORT_GUARDED_BY(mutex_);  // as in HandshakeRequest
  const std::shared_ptr<parameter_server::ServerLinks> servers_;
};

}  // namespace cohort
