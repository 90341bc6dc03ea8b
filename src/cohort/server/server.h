// SPDX-License-Identifier: Apache-2.0
// A standard server (tf.distribute.Server): hosts variables as a parameter server and runs closures
// as a worker. It knows no user code but the functions registered by name in its binary.
//
//   if (resolver.is_server()) return cohort::Server(resolver).join();
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cohort/cluster/cluster_resolver.h"
#include "cohort/core/clock.h"
#include "cohort/core/export.h"
#include "cohort/rpc/control.h"

namespace cohort {

struct ServerOptions {
  // Empty: a hash of the cluster spec, the same on every task that was given the same one.
  std::string job_id = {};
  // Directories whose files a pipeline sent by the coordinator may open. Empty: those of
  // COHORT_DATA_DIRS (split at
  // ':'); none there either: no file at all.
  std::vector<std::string> data_dirs = {};
  // Backends of the data plane, in order of preference.
  std::vector<std::string> backends = {"stream"};
  // A port of its own for the data backend "stream", on the host of the task's address. 0: tensors
  // travel over the task's one port, as everything does.
  int data_port = 0;
  // LibTorch's intra-op threads; 0: OMP_NUM_THREADS where that is set, else cores / tasks on this
  // host.
  int intra_op_threads = 0;
  // How long a closure waits for the answers of the parameter servers, where the coordinator does
  // not say (ClusterOptions::data_timeout does).
  Duration data_timeout = std::chrono::minutes(5);
  // Checksums of tensors on their way; the coordinator's wish counts as well.
  rpc::PayloadChecksums payload_checksums = rpc::PayloadChecksums::between_hosts;
  // SIGTERM and SIGINT end join(), from the construction on, unless the program handles them
  // itself.
  bool handle_signals = true;
};

// Thread-safe. Has glibc's malloc keep up to 256 MiB of freed memory in this process, unless the
// environment sets its thresholds (GLIBC_TUNABLES, MALLOC_TRIM_THRESHOLD_).
class COHORT_API Server {
 public:
  // Listens at once. Throws invalid_argument for a bad spec, task, address or option,
  // unimplemented for an unknown backend, already_exists when the port is taken. While no name
  // server tells the address of the task's own host it asks again, for a minute; then unavailable,
  // or cancelled where a signal came first.
  explicit Server(const ClusterResolver& resolver, ServerOptions options = {});
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  // Blocks until shutdown() or a signal, with no deadline. Returns the exit code: 0.
  int join();
  // Ends what runs, within the grace and some seconds more (less than ten after a signal), as the
  // destructor does. False when a closure or a pipeline did not end, which nothing can stop: it is
  // left behind, and the program should end by std::_Exit(), which does not touch what it uses. Not
  // from several threads at once.
  bool stop() noexcept;
  // Lets running closures finish for `grace`, then ends join(). Any thread.
  void shutdown(std::chrono::milliseconds grace = std::chrono::seconds(5));
  // "127.0.0.1:2222": where it listens.
  const std::string& address() const;
  // What this task has done: closures, pushes applied and dropped, bytes.
  rpc::Health health() const;

 private:
  class Task;
  std::unique_ptr<Task> task_;
};

}  // namespace cohort
