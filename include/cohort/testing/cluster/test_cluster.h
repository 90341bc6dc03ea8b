// SPDX-License-Identifier: Apache-2.0
// A cluster on this machine for tests, with fault injection: real server processes on loopback
// ports, which are reserved so that no other program gets them.
//
//   TestCluster cluster({.workers = 2, .ps = 2});
//   ParameterServerStrategy strategy(cluster.resolver());
//   cluster.kill("worker:1"); … cluster.restart("worker:1");
//
// Installed with the library, for the tests of programs that use it; needs no test framework.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cohort/cluster/cluster_resolver.h"
#include "cohort/cluster/task_health.h"
#include "cohort/core/clock.h"
#include "cohort/core/error.h"
#include "cohort/core/export.h"

namespace cohort::testing {

struct TestClusterOptions {
  int workers = 1;
  int ps = 1;
  // The command of each server; empty: $COHORT_TEST_SERVER, or else `cohort server`.
  std::vector<std::string> command = {};
  std::vector<std::string> data_dirs = {};
  std::vector<std::string> not_started = {};  // tasks that are not started, such as "worker:1"
  // Addresses of proxies by task, such as "ps:0"; the other tasks connect there. Then give every
  // task the same job id, since their cluster specs differ.
  std::map<std::string, std::string> proxies = {};
};

// Used only from one thread, which must live as long as the servers: the system kills a server when
// the thread that started it ends (with the constructor, start() or restart()), so that a test that
// crashes leaves none behind. The destructor kills all servers.
class COHORT_API TestCluster {
 public:
  // Returns when all servers listen at their addresses. Throws not_found if the program does not
  // exist; and, with the server's output, failed_precondition if a server exits (code 127 if a
  // shared library is missing), deadline_exceeded if one does not listen within two minutes.
  explicit TestCluster(TestClusterOptions options = {});
  ~TestCluster();
  TestCluster(const TestCluster&) = delete;
  TestCluster& operator=(const TestCluster&) = delete;

  // For the coordinator: chief:0 of this cluster.
  SimpleResolver resolver() const;
  // The addresses at which the tasks listen.
  const ClusterSpec& spec() const { return spec_; }
  // The value of TF_CONFIG of a task.
  std::string tf_config(const std::string& task) const;

  // Starts a task that is in `not_started` or was killed. Returns and throws as the constructor
  // does; throws resource_exhausted if another program has taken its port.
  void start(const std::string& task);
  void kill(const std::string& task);     // SIGKILL; waits for the process to end
  void restart(const std::string& task);  // at the same address
  void stop(const std::string& task);     // SIGSTOP; waits until the process is stopped
  void resume(const std::string& task);
  // The task's own counters: closures, applied and dropped updates.
  TaskHealth health(const std::string& task) const;
  // All output of the task.
  std::string output(const std::string& task) const;

 private:
  void choose_ports();
  void start_all();
  std::optional<Error> try_start();
  void launch(const std::string& task);
  std::optional<Error> await_all() const;
  std::optional<Error> await_listener(const std::string& task, Deadline deadline) const;
  std::string end_of(const std::string& task) const;
  bool has_lost_port() const;
  std::string quoted_output(const std::string& task) const;
  void kill_all() noexcept;
  void end() noexcept;
  int pid_of(const std::string& task) const;
  ClusterSpec spec_for(const std::string& task) const;

  TestClusterOptions options_;
  std::string folder_;
  ClusterSpec spec_;
  struct Ports;
  std::unique_ptr<Ports> ports_;
  std::map<std::string, int> pids_;
};

// A free port of 127.0.0.1. It stays reserved until this process ends; each call keeps one file
// descriptor open. Thread-safe.
COHORT_API int free_port();

}  // namespace cohort::testing
