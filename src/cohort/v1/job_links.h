// SPDX-License-Identifier: Apache-2.0
// The connections of a task to the servers, and the job that they serve.
//
// A job is what one start of the chief has made on all servers. It is named by the incarnation of
// that start (docs/decisions/0161). Other tasks, and later starts of the chief, join it. After the
// loss of a server, the chief begins another job, and the servers refuse what is of the one before.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cohort/cluster/cluster_options.h"
#include "cohort/cluster/cluster_resolver.h"
#include "cohort/core/clock.h"
#include "cohort/core/error.h"
#include "cohort/core/export.h"
#include "cohort/parameter_server/server_links.h"
#include "cohort/rpc/messages.h"

namespace cohort::detail::v1 {

// Thread-safe, except that one thread at a time calls begin() or join().
class COHORT_API JobLinks {
 public:
  // `on_closed`: called on a thread of a connection that has closed.
  JobLinks(const ClusterSpec& spec, const std::string& task, ClusterOptions options,
           std::function<void()> on_closed);
  ~JobLinks();
  JobLinks(const JobLinks&) = delete;
  JobLinks& operator=(const JobLinks&) = delete;

  const std::shared_ptr<parameter_server::ServerLinks>& servers() const { return servers_; }
  const ClusterOptions& options() const { return options_; }
  std::uint64_t incarnation() const { return self_.incarnation; }  // of this process
  std::uint64_t job() const { return job_; }                       // 0 before begin() and join()
  std::size_t num_servers() const { return members_.size(); }

  // The jobs that the servers serve, 0 for one that serves none. Waits for servers that start until
  // the deadline; then throws unavailable, naming those that are missing.
  std::vector<std::uint64_t> jobs(Deadline deadline) const;
  // The job that all of them serve; 0 if there is none.
  static std::uint64_t common(const std::vector<std::uint64_t>& jobs);
  // Connects to all servers, and begins a job without variables. Throws as jobs().
  void begin(Deadline deadline);
  // Connects to all servers for a job that they serve. Throws as jobs(), and the error of a server
  // that does not serve it any more.
  void join(std::uint64_t job, Deadline deadline);

  // These ask the first server, which knows the variables by name.
  void announce(rpc::AnnounceRequest request) const;
  rpc::FindReply find(std::vector<std::string> names) const;
  void create(rpc::MemberId server, const std::vector<rpc::VariableSpec>& variables) const;
  // No call waits any more.
  void close() noexcept;

 private:
  rpc::Connection connect(const rpc::Member& server, Deadline deadline, bool begins) const;
  void connect_all(std::uint64_t job, Deadline deadline, bool begins);
  std::string silent_ones() const;
  rpc::Frame ask_first(rpc::Frame request, const std::string& what) const;

  const ClusterOptions options_;
  const rpc::Identity self_;
  const std::function<void()> on_closed_;
  std::vector<rpc::Member> members_;
  std::atomic<std::uint64_t> job_ = 0;
  std::atomic<std::uint64_t> epoch_ = 0;
  std::atomic<bool> is_closed_ = false;
  std::shared_ptr<parameter_server::ServerLinks> servers_;
};

// Whether the servers no longer have what this task has used: one was restarted, or they serve
// another job.
COHORT_API bool is_job_lost(const Error& error);
// Whether a call may succeed if it is made again: its connection was lost.
COHORT_API bool is_connection_lost(const Error& error);

}  // namespace cohort::detail::v1
