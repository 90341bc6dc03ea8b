// SPDX-License-Identifier: Apache-2.0
// Connects to one task: the handshake over the control plane, then a data channel with its hello.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "cohort/cluster/cluster_resolver.h"
#include "cohort/rpc/control.h"
#include "cohort/rpc/requester.h"

namespace cohort::rpc {

struct ConnectionOptions {
  std::string address = {};  // of the control plane
  std::string task = {};     // the expected one: "ps:0"
  Identity caller = {};
  std::uint64_t coordinator_incarnation = 0;
  std::string backend = {};                  // of the data plane; empty: the server's first choice
  Duration data_timeout = Duration::zero();  // HandshakeRequest's
  bool is_returning = false;                 // HandshakeRequest's
  std::uint64_t start_order = 0;             // HandshakeRequest's
  bool has_first_task = false;               // HandshakeRequest's
  bool is_shared = false;                    // HandshakeRequest's
  PayloadChecksums payload_checksums = PayloadChecksums::between_hosts;
  Deadline deadline = {};
  // If later than the deadline: until when to retry a task that does not respond at all, not even
  // by refusing the connection. Then throws deadline_exceeded.
  std::optional<Deadline> silence_deadline{};
  std::function<void(Frame)> on_one_way = {};
  std::function<void(const Error&)> on_closed = {};
  // Called once, when an attempt has failed and another one follows. May be empty.
  std::function<void(const Error&)> on_retry = {};
  std::function<bool()> should_stop = {};  // polled between attempts; may be empty
  // Called before the error is thrown, if the control plane answered but the data plane, at this
  // address, did not. May be empty.
  std::function<void(const std::string& data_address)> on_data_unreachable{};
};

// A connected task. Thread-safe.
struct COHORT_API Connection {
  std::shared_ptr<ControlClient> control;
  std::shared_ptr<Requester> data;
  std::uint64_t incarnation = 0;
  std::uint64_t start_order = 0;  // HandshakeReply's
  std::uint64_t shared_job = 0;   // HandshakeReply's
};

// Retries until the deadline while the task cannot be reached (peer_lost); throws every other error
// at once. A task of another name, job, protocol or LibTorch version is failed_precondition; the
// error names both sides.
COHORT_API Connection connect_task(const ConnectionOptions& options);

// Whether the error may mean that the task is still starting: nobody has answered yet.
COHORT_API bool may_come_up(const Error& error);

// A host that is up refuses a connection within one round trip, so a check need not wait longer.
inline constexpr auto kRefusalTimeout = std::chrono::milliseconds(500);
// Whether the host of "host:port" refuses connections there (ECONNREFUSED): the host is up, but
// nobody listens. Also false if the deadline passes first, or if this process lacks descriptors.
// Makes a connection, which a listening server counts as a stranger, so call it only after a
// failure.
COHORT_API bool is_refusing(const std::string& address, Deadline deadline) noexcept;

// The address of `endpoint` for a caller that reached the control plane of its task at `dialled`.
COHORT_API std::string address_of(const Endpoint& endpoint, const std::string& dialled);

// The identity of this process as `task` of `job_id`.
COHORT_API Identity identity_of_process(const std::string& task, const std::string& job_id,
                                        std::uint64_t incarnation);

// Describes the first difference in job, protocol version or LibTorch version; empty if there is
// none.
COHORT_API std::string disagreement(const Identity& self, const Identity& other);

// HandshakeRequest::start_order for a coordinator that starts now: the system time in nanoseconds.
COHORT_API std::uint64_t start_order_now();

// The job's name if none is configured: a hash of the cluster's addresses.
COHORT_API std::string default_job_id(const std::string& cluster_text);
struct JobId {
  std::string text;
  std::string from;  // "COHORT_JOB_ID", "SLURM_JOB_ID", "a hash of the cluster" or "the program"
};
// The first of these that is not empty: `given` by the program; the variable COHORT_JOB_ID; the
// number of the Slurm job, where it has started this process as a task of its step; and the hash.
// The first three stay the same when the cluster gets other addresses.
COHORT_API JobId job_id_of(const ClusterSpec& spec, const std::string& given = {});
// Another process's job in a message: "job 'mine'", or words instead of that hash.
COHORT_API std::string text_of_job(const std::string& job_id);

}  // namespace cohort::rpc
