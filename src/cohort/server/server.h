// SPDX-License-Identifier: Apache-2.0
// A standard server (tf.distribute.Server): stores variables as a parameter server, or runs
// closures as a worker. The only user code that it runs are functions that its program has
// registered by name.
//
//   if (resolver.is_server()) return cohort::Server(resolver).join();
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cohort/cluster/cluster_options.h"
#include "cohort/cluster/cluster_resolver.h"
#include "cohort/core/clock.h"
#include "cohort/core/export.h"
#include "cohort/rpc/health.h"

namespace cohort {

struct ServerOptions {
  // If empty, it is a hash of the cluster spec, which is the same on all tasks of a cluster.
  std::string job_id = {};
  // The directories whose files the coordinator's datasets may open. If empty, they are those of
  // COHORT_DATA_DIRS, separated by ':'. If that is not set either, no file may be opened.
  std::vector<std::string> data_dirs = {};
  // Backends of the data plane, in order of preference.
  std::vector<std::string> backends = {"stream"};
  // A second port for the data backend "stream", on the host of the task's address. If 0, the port
  // of the task is used for tensors too.
  int data_port = 0;
  // LibTorch's intra-op threads. If 0, the number is OMP_NUM_THREADS, or if that is not set, the
  // cores of this host divided by the cluster's tasks on it.
  int intra_op_threads = 0;
  // How long a closure waits for the answers of the parameter servers, if the coordinator does not
  // set it (ClusterOptions::data_timeout).
  Duration data_timeout = std::chrono::minutes(5);
  // Checksums of tensors that are sent; the coordinator's option counts too.
  PayloadChecksums payload_checksums = PayloadChecksums::between_hosts;
  // Whether SIGTERM and SIGINT end join(). Signals count from the construction on. A signal that
  // the program handles itself is left to it.
  bool handle_signals = true;
};

// Thread-safe. Makes glibc's malloc keep up to 256 MiB of freed memory in this process, unless the
// environment sets malloc's thresholds (GLIBC_TUNABLES, MALLOC_TRIM_THRESHOLD_,
// MALLOC_MMAP_THRESHOLD_).
class COHORT_API Server {
 public:
  // Listens at once. Throws invalid_argument for a bad spec, task, address or option, unimplemented
  // for an unknown backend, and already_exists if the port is taken. If no name server knows the
  // address of the task's own host, it asks again for a minute, and then throws unavailable, or
  // cancelled if a signal came first.
  explicit Server(const ClusterResolver& resolver, ServerOptions options = {});
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  // Blocks until shutdown() or a signal, without a deadline. Returns the exit code 0.
  int join();
  // Ends everything that runs, within the grace and a few seconds more (less than ten in all after
  // a signal), as the destructor does. Returns false if a closure or a pipeline did not end, as it
  // cannot be stopped: it is left behind, and the program should end with std::_Exit(), which does
  // not destroy the objects that it uses. Must not be called by several threads at once.
  bool stop() noexcept;
  // Ends join(). Closures that run have until `grace` has passed to finish. Any thread may call it.
  void shutdown(std::chrono::milliseconds grace = std::chrono::seconds(5));
  // The address where it listens, "127.0.0.1:2222".
  const std::string& address() const;
  // Counters of this task: closures, pushes that were applied and dropped, bytes.
  rpc::Health health() const;

 private:
  class Task;
  std::unique_ptr<Task> task_;
};

}  // namespace cohort
