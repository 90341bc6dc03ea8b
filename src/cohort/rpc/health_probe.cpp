// SPDX-License-Identifier: Apache-2.0
#include "cohort/rpc/health_probe.h"

#include <grpcpp/create_channel_posix.h>

#include <exception>
#include <utility>

#include "cohort/core/start_thread.h"
#include "cohort/net/host_port.h"
#include "cohort/net/name_lookup.h"
#include "cohort/rpc/control_calls/checked_call.h"
#include "cohort/rpc/control_calls/control_codec.h"
#include "cohort/rpc/control_calls/grpc_setup.h"
#include "cohort/rpc/process_room.h"
#include "cohort/rpc/sockets/connect.h"
#include "control.grpc.pb.h"

namespace cohort::rpc {
namespace {

ProbeResult failed_probe(ProbeResult::State state, std::string reason) {
  return {.state = state, .health = {}, .reason = std::move(reason)};
}

ProbeResult refused_probe(const grpc::Status& status) {
  if (status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED) {
    return failed_probe(
        ProbeResult::State::no_answer,
        "somebody listens there, and did not answer before the deadline; the process may "
        "be stopped, or its host overloaded");
  }
  return failed_probe(ProbeResult::State::stranger,
                      "what listens there is no Cohort task of this version, or ended just now (" +
                          status.error_message() + ")");
}

ProbeResult answered_probe(TaskHealth health, const ProbedTask& asked, const std::string& job_id) {
  ProbeResult result{
      .state = ProbeResult::State::answers, .health = std::move(health), .reason = {}};
  const std::string& named = result.health.task;
  if (!job_id.empty() && named.empty()) {
    result.state = ProbeResult::State::stranger;
    result.reason =
        "a Cohort task of another job answers; give the cluster that the task was given, or its "
        "job id";
  } else if (!named.empty() && !asked.task.empty() && named != asked.task) {
    result.state = ProbeResult::State::stranger;
    result.reason = named + " of this job answers at the address of " + asked.task;
  }
  return result;
}

// Connects without gRPC, which does not report why it could not connect.
ProbeResult probe(const ProbedTask& asked, const std::string& job_id, Deadline deadline) {
  const internal::PeerName peer{asked.task, asked.address, "grpc"};
  const auto found = net::look_up(net::parse_address(asked.address), false, deadline);
  if (!found || !found->list) {
    return failed_probe(ProbeResult::State::name_not_resolved,
                        internal::unresolved_error(peer, found).message());
  }
  FileDescriptor socket;
  try {
    socket = internal::connect_to(peer, *found->list, deadline);
  } catch (const Error& error) {
    if (error.code() == ErrorCode::deadline_exceeded)
      return failed_probe(ProbeResult::State::no_answer,
                          "the host did not accept a connection before the deadline");
    if (error.cause() != ErrorCause::peer_lost) throw;
    return failed_probe(ProbeResult::State::nobody_listens, error.message());
  }
  proto::CheckedControl::Stub stub(
      grpc::CreateInsecureChannelFromFd(asked.address, socket.release()));
  grpc::ClientContext context;
  context.set_deadline(internal::grpc_time(deadline));
  const proto::Call call = internal::checked_call("GetHealth", 0, internal::encoded(job_id));
  proto::Answer answer;
  const grpc::Status status = stub.GetHealth(&context, call, &answer);
  if (!status.ok()) return refused_probe(status);
  if (!internal::is_intact(answer, call)) {
    return failed_probe(ProbeResult::State::no_answer,
                        "its answer arrived broken (wrong checksum): the connection corrupts data");
  }
  if (answer.has_error())
    return failed_probe(ProbeResult::State::no_answer, internal::error_of(answer).message());
  return answered_probe(internal::decoded<TaskHealth>(answer.body(), "the answer to GetHealth"),
                        asked, job_id);
}

}  // namespace

std::vector<ProbeResult> probe_health(const std::vector<ProbedTask>& tasks,
                                      const std::string& job_id, Deadline deadline) {
  for (const ProbedTask& asked : tasks) net::parse_address(asked.address);
  // gRPC would hang if it got too few threads, and abort if it got too few descriptors.
  check_descriptor_room(tasks.size() + kGrpcDescriptors);
  check_thread_room(tasks.size() + kGrpcThreads);
  std::vector<ProbeResult> results(tasks.size());
  std::vector<std::exception_ptr> errors(tasks.size());
  {
    JoinedThreads threads;
    for (std::size_t i = 0; i < tasks.size(); ++i) {
      threads.add(internal::start_thread([&, i] {
        try {
          results[i] = probe(tasks[i], job_id, deadline);
        } catch (...) {
          errors[i] = std::current_exception();
        }
      }));
    }
  }
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
  return results;
}

}  // namespace cohort::rpc
