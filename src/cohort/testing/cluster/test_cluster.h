// SPDX-License-Identifier: Apache-2.0
// A cluster on this machine for tests: real server processes on loopback ports that the system
// chose, and faults.
//
//   TestCluster cluster({.workers = 2, .ps = 2});
//   ParameterServerStrategy strategy(cluster.resolver());
//   cluster.kill("worker:1"); … cluster.restart("worker:1");
//
// Installed with the library, for the tests of programs that use it; needs no test framework.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "cohort/cluster/resolvers/simple_resolver.h"
#include "cohort/core/export.h"
#include "cohort/rpc/control.h"

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
  // not_found: there is no such program.
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
  void start_all();
  void end() noexcept;
  int pid_of(const std::string& task) const;
  ClusterSpec spec_for(const std::string& task) const;

  TestClusterOptions options_;
  std::string folder_;
  ClusterSpec spec_;
  std::map<std::string, int> pids_;
};

// A port nobody listens on just now.
COHORT_API int free_port();

}  // namespace cohort::testing
