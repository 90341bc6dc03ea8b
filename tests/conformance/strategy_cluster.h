// SPDX-License-Identifier: Apache-2.0
// The cluster of a case of ParameterServerStrategy: each worker and parameter server is a process
// of cohort_conformance, so that it knows the functions that the runner registers.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "cohort/strategy/parameter_server_strategy.h"
#include "cohort/testing/cluster/test_cluster.h"

namespace cohort::conformance::strategy {

// Serves as the task of TF_CONFIG until the process is killed. Returns its exit code.
int serve_as_process();

// Thread-compatible. The destructor kills the servers.
class CaseCluster {
 public:
  // Returns when all servers listen. `program` is cohort_conformance.
  CaseCluster(int workers, int ps, const std::string& program);
  ~CaseCluster();
  CaseCluster(const CaseCluster&) = delete;
  CaseCluster& operator=(const CaseCluster&) = delete;

  // The strategy of this cluster's coordinator. One at a time may be used.
  std::unique_ptr<ParameterServerStrategy> make_strategy(Partitioner partitioner = {}) const;
  int workers() const { return workers_; }
  int ps() const { return ps_; }
  // Whether all tasks still run that were started at first.
  bool is_intact() const { return is_intact_; }
  // Kills a task, such as "worker:0", and waits for its end.
  void kill(const std::string& task);
  // Starts a task that was killed, at the same address. With a delay it returns at once, and the
  // task starts later, before any later kill() or restart().
  void restart(const std::string& task, std::chrono::milliseconds delay = {});

 private:
  void do_orders();
  void order(std::function<void()> work);
  void finish();
  bool is_ended_within(std::chrono::milliseconds delay);
  void end() noexcept;

  const int workers_, ps_;
  bool is_intact_ = true;
  // The servers live as long as the thread that has started them (TestCluster), so one thread
  // starts and kills all, in the order of the calls.
  std::unique_ptr<testing::TestCluster> servers_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> orders_;
  std::exception_ptr failure_;
  bool is_busy_ = false, is_ending_ = false;
  std::thread thread_;
};

// A cluster of this size, with processes that an earlier case has left if they are intact, since it
// takes longer to start them than to run most cases. Used only from one thread.
std::shared_ptr<CaseCluster> cluster_of_size(int workers, int ps, const std::string& program);
// Kills the processes that are kept for further cases.
void forget_clusters();

}  // namespace cohort::conformance::strategy
