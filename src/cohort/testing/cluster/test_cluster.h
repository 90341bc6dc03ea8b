// SPDX-License-Identifier: Apache-2.0
// A cluster on this machine for tests: real server processes on loopback ports that the system
// chose and that it keeps from other programs, and faults.
//
//   TestCluster cluster({.workers = 2, .ps = 2});
//   ParameterServerStrategy strategy(cluster.resolver());
//   cluster.kill("worker:1"); … cluster.restart("worker:1");
//
// Installed with the library, for the tests of programs that use it; needs no test framework.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "cohort/cluster/resolvers/simple_resolver.h"
#include "cohort/core/clock.h"
#include "cohort/core/error.h"
#include "cohort/core/export.h"
#include "cohort/rpc/control.h"
#include "cohort/rpc/reserved_port.h"

namespace cohort::testing {

struct TestClusterOptions {
  int workers = 1;
  int ps = 1;
  // What each server runs; empty: $COHORT_TEST_SERVER, or else `cohort server`.
  std::vector<std::string> command = {};
  std::vector<std::string> data_dirs = {};
  std::vector<std::string> not_started = {};  // tasks that never appear: "worker:1"
  // Addresses of proxies: others reach the task "ps:0" there. Every task must be given the same job
  // id then.
  std::map<std::string, std::string> proxies = {};
};

// Used from one thread. No process outlives it.
class COHORT_API TestCluster {
 public:
  // Returns when all servers listen at their addresses. Throws, with what the server printed:
  // not_found when there is no such program, failed_precondition when a server ended (a missing
  // shared library is exit code 127), deadline_exceeded when one does not listen within two
  // minutes.
  explicit TestCluster(TestClusterOptions options = {});
  ~TestCluster();
  TestCluster(const TestCluster&) = delete;
  TestCluster& operator=(const TestCluster&) = delete;

  // For the coordinator: chief:0 of this cluster.
  SimpleResolver resolver() const;
  // Where each task listens.
  const ClusterSpec& spec() const { return spec_; }
  // What a task finds in TF_CONFIG.
  std::string tf_config(const std::string& task) const;

  // Of one in `not_started`, or killed. Returns and throws as the constructor does; already_exists
  // where another program has taken its port.
  void start(const std::string& task);
  void kill(const std::string& task);     // SIGKILL, and gone when this returns
  void restart(const std::string& task);  // on the same address
  void stop(const std::string& task);     // SIGSTOP: alive, silent when this returns
  void resume(const std::string& task);
  // As the task itself counts: closures, pushes applied and dropped.
  rpc::Health health(const std::string& task) const;
  // All that it printed.
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
  std::map<std::string, rpc::ReservedPort> ports_;
  std::map<std::string, int> pids_;
};

// A port of 127.0.0.1 that nobody listens on. It stays reserved (rpc::ReservedPort) until this
// process ends, which costs a file descriptor for each call. Thread-safe.
COHORT_API int free_port();

}  // namespace cohort::testing
