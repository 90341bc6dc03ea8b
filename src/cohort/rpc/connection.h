// SPDX-License-Identifier: Apache-2.0
// Reaching one task: the handshake over the control plane, then a data channel with its hello.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "cohort/cluster/task_id.h"
#include "cohort/rpc/control.h"
#include "cohort/rpc/requester.h"

namespace cohort::rpc {

struct ConnectionOptions {
  std::string address = {};  // of the control plane
  std::string task = {};     // who should be there: "ps:0"
  Identity caller = {};
  std::uint64_t coordinator_incarnation = 0;
  std::string backend = {};                  // of the data plane; empty: the server's first choice
  Duration data_timeout = Duration::zero();  // HandshakeRequest's
  bool is_returning = false;                 // HandshakeRequest's
  std::uint64_t start_order = 0;             // HandshakeRequest's
  PayloadChecksums payload_checksums = PayloadChecksums::between_hosts;
  Deadline deadline = {};
  // Where later than the deadline: until when a task is waited for that says nothing at all, not
  // even that nobody listens there. deadline_exceeded then.
  std::optional<Deadline> silence_deadline{};
  std::function<void(Frame)> on_one_way = {};
  std::function<void(const Error&)> on_closed = {};
  std::function<bool()> should_stop = {};  // polled between attempts; may be empty
  // Called before the error: the control plane was answered, frames were not, at this address. May
  // be empty.
  std::function<void(const std::string& data_address)> on_data_unreachable{};
};

// One task, reached. Thread-safe.
struct COHORT_API Connection {
  std::shared_ptr<ControlClient> control;
  std::shared_ptr<Requester> data;
  std::uint64_t incarnation = 0;
  std::uint64_t start_order = 0;  // HandshakeReply's
};

// Tries until the deadline while nobody answers (peer_lost); every other error is final at once.
// Refuses a task of another name, job, protocol or LibTorch version with failed_precondition that
// names both sides.
COHORT_API Connection connect_task(const ConnectionOptions& options);

// Where an endpoint is for who has reached the control plane of its task at `dialled`.
COHORT_API std::string address_of(const Endpoint& endpoint, const std::string& dialled);

// The identity of this process as `task` of `job_id`.
COHORT_API Identity identity_of_process(const std::string& task, const std::string& job_id,
                                        std::uint64_t incarnation);

// What is wrong with `other` in the eyes of `self`, in words; empty: nothing.
COHORT_API std::string disagreement(const Identity& self, const Identity& other);

// HandshakeRequest::start_order of a coordinator that starts now.
COHORT_API std::uint64_t start_order_now();

// A number that no other start of a process has.
COHORT_API std::uint64_t new_incarnation();

// The job's name where none was given: a hash of its addresses.
COHORT_API std::string default_job_id(const std::string& cluster_text);

}  // namespace cohort::rpc
