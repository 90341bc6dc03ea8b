// SPDX-License-Identifier: Apache-2.0
// A standard server (tf.distribute.Server): stores variables as a parameter server, or runs
// closures as a worker. It runs traced programs; the only user code that it runs are functions that
// its program has registered by name.
//
//   if (resolver.is_server()) return cohort::Server(resolver).join();
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "cohort/cluster/cluster_options.h"
#include "cohort/cluster/cluster_resolver.h"
#include "cohort/cluster/task_health.h"
#include "cohort/core/clock.h"
#include "cohort/core/export.h"

namespace cohort {

struct ServerOptions {
  // As ClusterOptions::job_id.
  std::string job_id = {};
  // The directories below which the server reads the files of the coordinator's datasets, and
  // creates those of cache(file) and of checkpoints (CheckpointWriters::each). Empty: those of the
  // environment variable COHORT_DATA_DIRS, separated by ':'; if that is not set, none.
  std::vector<std::string> data_dirs = {};
  // Backends for sending tensors, in order of preference: "stream", "grpc".
  std::vector<std::string> backends = {"stream"};
  // A second port for the backend "stream", on the host of the task's address. 0: tensors use the
  // task's port too.
  int data_port = 0;
  // LibTorch's intra-op threads. 0: OMP_NUM_THREADS, or if that is not set, the number of this
  // host's cores divided by the number of the cluster's tasks on it.
  int intra_op_threads = 0;
  // How long a closure waits for the answers of parameter servers, if the coordinator does not set
  // it (ClusterOptions::data_timeout).
  Duration data_timeout = std::chrono::minutes(5);
  // Checksums of tensors that are sent. PayloadChecksums says what applies if the coordinator's
  // option differs.
  PayloadChecksums payload_checksums = PayloadChecksums::between_hosts;
  // Whether the task's port answers HTTP requests for /metrics, in the text format of Prometheus.
  // The answer has the names of variables, and everybody who reaches the port gets it. The
  // environment variable COHORT_METRICS=1 sets this too.
  bool serves_metrics = false;
  // For each variable, how many of its rows that are read and updated most often health() tells.
  // Finding them costs about 10 us a request. 0: none.
  int hot_rows = 0;
  // join() returns when tasks of the job were connected and none has been for this long. So the
  // servers of a job that srun or mpirun has started end after its other tasks. It must be longer
  // than a chief takes to start again. 0: as the environment variable COHORT_END_WHEN_UNUSED says,
  // in whole seconds; if that is not set or 0, never.
  Duration end_when_unused = Duration::zero();
  // Whether SIGTERM and SIGINT end join(), from the construction on. A signal for which the program
  // has its own handler is left to that handler.
  bool handle_signals = true;
};

// Thread-safe, except that only one thread may call stop(). Makes glibc's malloc keep up to 256 MiB
// of freed memory in this process, unless the environment sets malloc's thresholds
// (GLIBC_TUNABLES, MALLOC_TRIM_THRESHOLD_, MALLOC_MMAP_THRESHOLD_).
class COHORT_API Server {
 public:
  // Starts to listen. Throws invalid_argument for a bad spec, task, address or option;
  // unimplemented for an unknown backend; resource_exhausted if the port is taken, or if threads,
  // descriptors or address space are missing. If no name server knows the address of this task's
  // host, it asks again for a minute; then it throws unavailable, or if a signal arrives meanwhile,
  // cancelled.
  explicit Server(const ClusterResolver& resolver, ServerOptions options = {});
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  // Blocks until shutdown() is called, a signal arrives, or the server is unused as
  // ServerOptions::end_when_unused says, without a deadline. Returns the exit code 0. Throws
  // resource_exhausted if the server ended itself because no thread could be started for its
  // connections while no coordinator used it.
  int join();
  // Ends all work and waits for that, at most for the grace of shutdown() and a few seconds (less
  // than ten seconds in all after a signal). The destructor does the same. Returns false if a
  // closure or a pipeline could not be stopped. It still runs then, so the program should end with
  // std::_Exit(), which does not destroy the objects that it uses.
  bool stop() noexcept;
  // Asks the server to end and returns immediately: join() returns, and running closures may finish
  // within `grace`. Any thread may call it.
  void shutdown(std::chrono::milliseconds grace = std::chrono::seconds(5));
  // The address at which it listens, for example "127.0.0.1:2222".
  const std::string& address() const;
  // Counters of this task: closures, applied and dropped updates, bytes.
  TaskHealth health() const;

 private:
  class Task;
  std::unique_ptr<Task> task_;
};

}  // namespace cohort
