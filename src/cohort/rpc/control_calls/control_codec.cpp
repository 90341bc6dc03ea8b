// SPDX-License-Identifier: Apache-2.0
#include "cohort/rpc/control_calls/control_codec.h"

#include "cohort/core/error.h"

namespace cohort::rpc::internal {
namespace {

std::string to_string(const Bytes& bytes) {
  return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

Bytes to_bytes(const std::string& text) {
  const auto* begin = reinterpret_cast<const std::byte*>(text.data());
  return Bytes(begin, begin + text.size());
}

void write(proto::Identity& message, const Identity& identity) {
  message.set_task(identity.task);
  message.set_job_id(identity.job_id);
  message.set_incarnation(identity.incarnation);
  message.set_protocol_version(identity.protocol_version);
  message.set_torch_version(identity.torch_version);
}

Identity read(const proto::Identity& message) {
  return {.task = message.task(),
          .job_id = message.job_id(),
          .incarnation = message.incarnation(),
          .protocol_version = message.protocol_version(),
          .torch_version = message.torch_version()};
}

void write(proto::TensorSpec& message, const TensorSpec& spec) {
  message.set_dtype(static_cast<int>(spec.dtype));
  message.set_has_rank(spec.sizes.has_value());
  if (!spec.sizes) return;
  for (const std::int64_t size : *spec.sizes) message.add_sizes(size);
}

TensorSpec read(const proto::TensorSpec& message) {
  constexpr int kDtypes = static_cast<int>(at::ScalarType::NumOptions);
  COHORT_CHECK(message.dtype() >= 0 && message.dtype() < kDtypes, ErrorCode::data_loss,
               "[rpc.control] broken tensor spec: expected a dtype below ", kDtypes, ", got ",
               message.dtype());
  TensorSpec spec{.dtype = static_cast<at::ScalarType>(message.dtype()), .sizes = std::nullopt};
  if (!message.has_rank()) return spec;
  spec.sizes.emplace(message.sizes().begin(), message.sizes().end());
  for (const std::int64_t size : *spec.sizes) {
    COHORT_CHECK(size >= -1, ErrorCode::data_loss,
                 "[rpc.control] broken tensor spec: expected sizes of at least -1, got ", size);
  }
  return spec;
}

void write(proto::FileFingerprint& message, const FileFingerprint& file) {
  message.set_path(file.path);
  message.set_is_missing(file.is_missing);
  message.set_size_bytes(file.size_bytes);
  message.set_modified_ns(file.modified_ns);
  if (file.checksum) message.set_checksum(*file.checksum);
}

FileFingerprint read(const proto::FileFingerprint& message) {
  FileFingerprint file{.path = message.path(),
                       .is_missing = message.is_missing(),
                       .size_bytes = message.size_bytes(),
                       .modified_ns = message.modified_ns()};
  if (message.has_checksum()) file.checksum = message.checksum();
  return file;
}

void write(proto::InitialValue& message, const InitialValue& value) {
  message.set_kind(value.kind);
  message.set_first(value.first);
  message.set_second(value.second);
  message.set_seed(value.seed);
  message.set_name(value.name);
  write(*message.mutable_whole(), value.whole);
  if (!value.rows) return;
  message.set_first_row(value.rows->begin);
  message.set_end_row(value.rows->end);
}

InitialValue read(const proto::InitialValue& message) {
  COHORT_CHECK(message.kind() <= 255, ErrorCode::data_loss,
               "[rpc.control] expected a kind of initializer below 256, got ", message.kind());
  InitialValue value{.kind = static_cast<std::uint8_t>(message.kind()),
                     .first = message.first(),
                     .second = message.second(),
                     .seed = message.seed(),
                     .name = message.name(),
                     .whole = read(message.whole())};
  if (message.has_first_row())
    value.rows = InitialValue::Rows{.begin = message.first_row(), .end = message.end_row()};
  return value;
}

}  // namespace

proto::HandshakeRequest to_proto(const HandshakeRequest& request) {
  proto::HandshakeRequest message;
  write(*message.mutable_caller(), request.caller);
  message.set_expected_task(request.expected_task);
  message.set_coordinator_incarnation(request.coordinator_incarnation);
  message.set_data_timeout_nanoseconds(std::chrono::nanoseconds(request.data_timeout).count());
  message.set_is_returning(request.is_returning);
  message.set_payload_checksums(static_cast<std::uint32_t>(request.payload_checksums));
  message.set_start_order(request.start_order);
  message.set_has_first_task(request.has_first_task);
  return message;
}

HandshakeRequest from_proto(const proto::HandshakeRequest& message) {
  COHORT_CHECK(message.data_timeout_nanoseconds() >= 0, ErrorCode::invalid_argument,
               "[rpc.control] expected a data timeout of at least 0 ns, got ",
               message.data_timeout_nanoseconds(), "; run the same Cohort on every task");
  constexpr auto kSumsMax = static_cast<std::uint32_t>(PayloadChecksums::always);
  COHORT_CHECK(message.payload_checksums() <= kSumsMax, ErrorCode::invalid_argument,
               "[rpc.control] expected when payloads have checksums as a number up to ", kSumsMax,
               ", got ", message.payload_checksums(), "; run the same Cohort on every task");
  return {.caller = read(message.caller()),
          .expected_task = message.expected_task(),
          .coordinator_incarnation = message.coordinator_incarnation(),
          .data_timeout = std::chrono::nanoseconds(message.data_timeout_nanoseconds()),
          .is_returning = message.is_returning(),
          .start_order = message.start_order(),
          .payload_checksums = static_cast<PayloadChecksums>(message.payload_checksums()),
          .has_first_task = message.has_first_task()};
}

proto::HandshakeReply to_proto(const HandshakeReply& reply) {
  proto::HandshakeReply message;
  write(*message.mutable_server(), reply.server);
  for (const Endpoint& endpoint : reply.endpoints) {
    proto::Endpoint& added = *message.add_endpoints();
    added.set_backend(endpoint.backend);
    added.set_address(endpoint.address);
  }
  message.set_start_order(reply.start_order);
  return message;
}

HandshakeReply from_proto(const proto::HandshakeReply& message) {
  HandshakeReply reply{
      .server = read(message.server()), .endpoints = {}, .start_order = message.start_order()};
  for (const proto::Endpoint& endpoint : message.endpoints()) {
    reply.endpoints.push_back({endpoint.backend(), endpoint.address()});
  }
  return reply;
}

proto::FunctionBody to_proto(const FunctionBody& body) {
  proto::FunctionBody message;
  message.set_id(body.id);
  message.set_name(body.name);
  message.set_registered_name(body.registered_name);
  message.set_programs_before(body.programs_before);
  for (const Bytes& program : body.programs) message.add_programs(to_string(program));
  for (const FunctionBody::Variable& variable : body.variables) {
    proto::FunctionBody::Variable& added = *message.add_variables();
    added.set_name(variable.name);
    added.set_id(variable.id);
  }
  return message;
}

FunctionBody from_proto(const proto::FunctionBody& message) {
  FunctionBody body;
  body.id = message.id();
  body.name = message.name();
  body.registered_name = message.registered_name();
  body.programs_before = message.programs_before();
  for (const std::string& program : message.programs()) body.programs.push_back(to_bytes(program));
  for (const auto& variable : message.variables())
    body.variables.push_back({variable.name(), variable.id()});
  return body;
}

proto::Membership to_proto(const Membership& membership) {
  proto::Membership message;
  message.set_epoch(membership.epoch);
  for (const Member& server : membership.servers) {
    proto::Membership::Member& added = *message.add_servers();
    added.set_id(server.id);
    added.set_task(server.task);
    added.set_address(server.address);
    added.set_incarnation(server.incarnation);
  }
  return message;
}

Membership from_proto(const proto::Membership& message) {
  Membership membership{.epoch = message.epoch(), .servers = {}};
  for (const auto& server : message.servers()) {
    membership.servers.push_back(
        {server.id(), server.task(), server.address(), server.incarnation()});
  }
  return membership;
}

proto::Placement to_proto(const Placement& placement) {
  proto::Placement message;
  message.set_version(placement.version);
  for (const Slice& slice : placement.slices) {
    proto::Placement::Slice& added = *message.add_slices();
    added.set_variable(slice.variable);
    added.set_server(slice.server);
    added.set_first_row(slice.first_row);
    added.set_rows(slice.rows);
  }
  return message;
}

Placement from_proto(const proto::Placement& message) {
  Placement placement{.version = message.version(), .slices = {}};
  for (const auto& slice : message.slices()) {
    placement.slices.push_back({slice.variable(), slice.server(), slice.first_row(), slice.rows()});
  }
  return placement;
}

proto::Variables to_proto(const std::vector<VariableSpec>& variables) {
  proto::Variables message;
  for (const VariableSpec& variable : variables) {
    proto::VariableSpec& added = *message.add_variables();
    added.set_id(variable.id);
    added.set_name(variable.name);
    write(*added.mutable_spec(), variable.spec);
    added.set_is_trainable(variable.is_trainable);
    if (variable.initial) write(*added.mutable_initial(), *variable.initial);
  }
  return message;
}

std::vector<VariableSpec> from_proto(const proto::Variables& message) {
  std::vector<VariableSpec> variables;
  for (const proto::VariableSpec& variable : message.variables()) {
    variables.push_back({.id = variable.id(),
                         .name = variable.name(),
                         .spec = read(variable.spec()),
                         .is_trainable = variable.is_trainable()});
    if (variable.has_initial()) variables.back().initial = read(variable.initial());
  }
  return variables;
}

proto::IteratorSpec to_proto(const IteratorSpec& iterator) {
  proto::IteratorSpec message;
  message.set_id(iterator.id);
  message.set_dataset(to_string(iterator.dataset));
  message.set_seed(iterator.seed);
  if (iterator.epoch) message.set_epoch(*iterator.epoch);
  for (const FileFingerprint& file : iterator.files) write(*message.add_files(), file);
  return message;
}

IteratorSpec from_proto(const proto::IteratorSpec& message) {
  IteratorSpec iterator{
      .id = message.id(), .dataset = to_bytes(message.dataset()), .seed = message.seed()};
  if (message.has_epoch()) iterator.epoch = message.epoch();
  for (const proto::FileFingerprint& file : message.files()) iterator.files.push_back(read(file));
  return iterator;
}

proto::ReleaseRequest to_proto(const std::vector<std::uint64_t>& resources) {
  proto::ReleaseRequest message;
  for (const std::uint64_t resource : resources) message.add_resources(resource);
  return message;
}

std::vector<std::uint64_t> from_proto(const proto::ReleaseRequest& message) {
  return {message.resources().begin(), message.resources().end()};
}

proto::ShutdownRequest to_proto(std::chrono::milliseconds grace) {
  proto::ShutdownRequest message;
  message.set_grace_milliseconds(grace.count());
  return message;
}

std::chrono::milliseconds from_proto(const proto::ShutdownRequest& message) {
  return std::chrono::milliseconds(message.grace_milliseconds());
}

}  // namespace cohort::rpc::internal
