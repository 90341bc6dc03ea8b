// SPDX-License-Identifier: Apache-2.0
// The bodies of control calls and of their answers: the fields of each in order (core/fields.h). A
// later version adds fields at the end, which an earlier one passes over.
#pragma once

#include <chrono>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cohort/core/error.h"
#include "cohort/core/fields.h"
#include "cohort/rpc/control.h"

namespace cohort::rpc {
namespace internal {

inline constexpr std::size_t kErrorTextBytesMax = 4096;

struct ReleaseRequest {
  std::vector<std::uint64_t> resources;
  std::uint64_t next_call_bytes = 0;  // 0, or of the large call that follows this one
};
struct Done {};

template <class Codec>
void fields(Codec& codec, ReleaseRequest& request) {
  codec(request.resources, request.next_call_bytes);
}
template <class Codec>
void fields(Codec&, Done&) {}

}  // namespace internal

template <class Codec>
void fields(Codec& codec, Identity& identity) {
  codec(identity.task, identity.job_id, Fixed{identity.incarnation}, identity.protocol_version,
        identity.torch_version);
}

template <class Codec>
void fields(Codec& codec, HandshakeRequest& request) {
  codec(request.caller, request.expected_task, Fixed{request.coordinator_incarnation},
        request.data_timeout, request.is_returning, request.start_order,
        Choice(request.payload_checksums, PayloadChecksums::always, "when payloads have checksums"),
        request.has_first_task, request.is_shared);
  if constexpr (Codec::kReads) {
    if (request.data_timeout >= Duration::zero()) return;
    const auto nanoseconds = std::chrono::nanoseconds(request.data_timeout).count();
    codec.fail("a data timeout of at least 0 ns, got " + std::to_string(nanoseconds));
  }
}

template <class Codec>
void fields(Codec& codec, Endpoint& endpoint) {
  codec(endpoint.backend, endpoint.address);
}

template <class Codec>
void fields(Codec& codec, HandshakeReply& reply) {
  codec(reply.server, reply.endpoints, reply.start_order, Fixed{reply.shared_job});
}

}  // namespace cohort::rpc

namespace cohort {

// Codes of a later release become `unknown`.
template <class Codec>
void fields(Codec& codec, TaskError& error) {
  auto code = static_cast<std::uint32_t>(error.code);
  auto cause = static_cast<std::uint32_t>(error.cause);
  std::string text = error.text.substr(0, rpc::internal::kErrorTextBytesMax);
  codec(code, cause, error.age, error.origin, text);
  if constexpr (Codec::kReads) {
    const bool is_known =
        code >= 1 && code <= static_cast<std::uint32_t>(ErrorCode::unauthenticated);
    error.code = is_known ? static_cast<ErrorCode>(code) : ErrorCode::unknown;
    const bool is_known_cause = cause <= static_cast<std::uint32_t>(ErrorCause::must_restart);
    error.cause = is_known_cause ? static_cast<ErrorCause>(cause) : ErrorCause::none;
    error.text = std::move(text);
  }
}

template <class Codec>
void fields(Codec& codec, WorkerHealth& worker) {
  codec(worker.is_ready, worker.closures, worker.times_lost);
}

template <class Codec>
void fields(Codec& codec, CoordinatorHealth& health) {
  codec(health.queued, health.in_flight, health.completed, health.failed, health.cancelled,
        health.retries, health.traces, health.workers);
}

template <class Codec>
void fields(Codec& codec, HotRow& row) {
  codec(row.row, row.times);
}

template <class Codec>
void fields(Codec& codec, VariableHealth& variable) {
  codec(variable.name, variable.pulls, variable.pushes, variable.pulled_bytes,
        variable.pushed_bytes, variable.pulled_rows, variable.pushed_rows, variable.hot_rows);
}

template <class Codec>
void fields(Codec& codec, TaskHealth& health) {
  codec(Fixed{health.incarnation}, health.closures_run, health.pushes_applied,
        health.pushes_dropped, health.pulled_bytes, health.pushed_bytes, health.broken_frames,
        health.protocol_errors, health.task, health.uptime, health.closures_failed,
        health.closures_queued, health.closures_running, health.connections_lost,
        health.since_last_end, health.last_error, health.coordinator, health.variables,
        health.variable_bytes, health.rows_per_second, health.by_variable);
}

}  // namespace cohort

namespace cohort::rpc {

template <class Codec>
void fields(Codec& codec, Member& member) {
  codec(member.id, member.task, member.address, Fixed{member.incarnation});
}

template <class Codec>
void fields(Codec& codec, Membership& membership) {
  codec(membership.epoch, membership.servers, membership.closures_at_once);
}

template <class Codec>
void fields(Codec& codec, Slice& slice) {
  codec(slice.variable, slice.server, slice.first_row, slice.rows, slice.shard);
}

template <class Codec>
void fields(Codec& codec, Placement& placement) {
  codec(placement.version, placement.slices);
}

template <class Codec>
void fields(Codec& codec, FunctionBody::Variable& variable) {
  codec(variable.name, variable.id);
}

template <class Codec>
void fields(Codec& codec, FunctionBody& body) {
  codec(body.id, body.name, body.registered_name, body.programs_before, body.programs,
        body.variables);
}

template <class Codec>
void fields(Codec& codec, InitialValue::Rows& rows) {
  codec(rows.begin, rows.end);
}

template <class Codec>
void fields(Codec& codec, InitialValue& value) {
  codec(value.kind, value.first, value.second, Fixed{value.seed}, value.name, value.whole,
        value.rows);
}

template <class Codec>
void fields(Codec& codec, TableSpec& table) {
  using enum TableSpec::Eviction;
  codec(table.capacity, table.min_count,
        Choice(table.eviction, least_frequently_used, "a way to evict rows"));
}

template <class Codec>
void fields(Codec& codec, VariableSpec& variable) {
  codec(variable.id, variable.name, variable.spec, variable.is_trainable, variable.initial,
        variable.table);
}

template <class Codec>
void fields(Codec& codec, IteratorSpec& iterator) {
  codec(iterator.id, iterator.dataset, Fixed{iterator.seed}, iterator.epoch, iterator.files,
        iterator.is_value);
}

namespace internal {

template <class Body>
std::string encoded(const Body& body) {
  const Bytes bytes = encode_fields(body);
  return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

// `what` is for messages: "Handshake". Throws invalid_argument for bytes that no version sends.
template <class Body>
Body decoded(const std::string& bytes, std::string_view what) {
  Body body;
  try {
    FieldReader in(std::as_bytes(std::span(bytes)), what);
    in(body);
  } catch (const Error& error) {
    cohort::internal::throw_error(
        ErrorCode::invalid_argument, "[rpc.control] expected a message of ", what,
        ", got other bytes; run the same Cohort on every task (", error.message(), ")");
  }
  return body;
}

}  // namespace internal
}  // namespace cohort::rpc
