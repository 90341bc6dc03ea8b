// SPDX-License-Identifier: Apache-2.0
#include "cohort/rpc/messages.h"

#include "cohort/core/fields.h"
#include "cohort/rpc/control_calls/control_codec.h"

namespace cohort::net {

template <class Codec>
void fields(Codec& codec, net::HostProof& proof) {
  codec(Fixed{proof.host}, Fixed{proof.local}, Fixed{proof.remote});
}

}  // namespace cohort::net

namespace cohort::internal {

template <class Codec>
void fields(Codec& codec, Effect& effect) {
  bool has_row_ids = effect.row_ids.defined();
  codec(Choice(effect.kind, Effect::kLastKind, "a kind of effect"), effect.variable, effect.rule,
        effect.optimizer, effect.hyper, effect.version, effect.lazy_rows, has_row_ids);
  if (has_row_ids) codec(effect.row_ids);
  codec(effect.tensors);
}

template <class Codec>
void fields(Codec& codec, OptimizerSlots& slots) {
  codec(slots.optimizer, slots.rule, slots.tensors);
}

}  // namespace cohort::internal

namespace cohort::rpc {

template <class Codec>
void fields(Codec& codec, Hello& hello) {
  codec(hello.task, hello.job_id, Fixed{hello.coordinator_incarnation},
        Fixed{hello.server_incarnation},
        Choice(hello.payload_checksums, PayloadChecksums::always, "when payloads have checksums"),
        hello.host);
}

template <class Codec>
void fields(Codec& codec, HelloReply& reply) {
  codec(reply.has_payload_sums);
}

template <class Codec>
void fields(Codec& codec, PullRequest& pull) {
  codec(pull.variables, pull.wants_versions, pull.placement, pull.row_ids, pull.known,
        pull.snapshot);
  if constexpr (Codec::kReads) {
    const bool are_known = pull.known.empty() || (pull.wants_versions && pull.row_ids.empty() &&
                                                  pull.known.size() == pull.variables.size());
    if (!are_known) codec.fail("a version of each variable that is wanted with its own");
    COHORT_CHECK(pull.row_ids.size() <= pull.variables.size(), ErrorCode::data_loss,
                 "[rpc.messages] broken pull message: expected rows of at most ",
                 pull.variables.size(), " variables, got ", pull.row_ids.size());
  }
}

template <class Codec>
void fields(Codec& codec, PullReply& reply) {
  codec(reply.versions, reply.values);
  if constexpr (Codec::kReads) {
    COHORT_CHECK(reply.versions.empty() || reply.versions.size() >= reply.values.size(),
                 ErrorCode::data_loss, "[rpc.messages] broken pull reply: expected ",
                 reply.values.size(), " versions, got ", reply.versions.size());
  }
}

template <class Codec>
void fields(Codec& codec, PushId& id) {
  codec(id.origin, Fixed{id.incarnation}, id.number, id.segment);
}

template <class Codec>
void fields(Codec& codec, PushRequest& push) {
  codec(push.id, push.low_watermark, push.placement, push.effects, push.pull);
}

template <class Codec>
void fields(Codec& codec, AppliedRecord::Push& push) {
  codec(push.number, push.segment);
}
template <class Codec>
void fields(Codec& codec, AppliedRecord& record) {
  codec(record.origin, Fixed{record.incarnation}, record.low_watermark, record.applied,
        FixedList{record.earlier});
}
template <class Codec>
void fields(Codec& codec, StateRange& range) {
  codec(range.variable, range.first_row, range.rows, range.is_of_counts);
}
template <class Codec>
void fields(Codec& codec, TableUse& use) {
  codec(use.rows, use.capacity, use.row_bytes, use.bytes, use.counted);
}
template <class Codec>
void fields(Codec& codec, TableRows& table) {
  codec(table.keys, table.rows_end, table.use);
}
template <class Codec>
void fields(Codec& codec, StateOfRange& state) {
  codec(state.range, state.version, state.value, state.slots, state.table);
}
template <class Codec>
void fields(Codec& codec, ExportRequest& request) {
  codec(request.placement, request.ranges, request.has_slots, request.has_applied);
}
template <class Codec>
void fields(Codec& codec, CutRequest& request) {
  codec(Fixed{request.cut}, request.is_end, request.bytes_max, request.wait_max_ms,
        request.idle_max_ms);
}
template <class Codec>
void fields(Codec& codec, CutExport& request) {
  codec(Fixed{request.cut});
  fields(codec, request.request);
}
template <class Codec>
void fields(Codec& codec, SnapshotRequest& request) {
  codec(request.snapshot, request.placement, request.variables);
}
template <class Codec>
void fields(Codec& codec, ExportReply& reply) {
  codec(reply.states, reply.applied);
}
template <class Codec>
void fields(Codec& codec, ImportRequest& request) {
  codec(request.placement, request.states, request.applied);
}
template <class Codec>
void fields(Codec&, DoneReply&) {}
template <class Codec>
void fields(Codec& codec, SharedVariable& variable) {
  codec(variable.name, variable.spec, variable.is_trainable, variable.slices);
}
template <class Codec>
void fields(Codec& codec, AnnounceRequest& request) {
  codec(request.variables, request.is_ready);
}
template <class Codec>
void fields(Codec& codec, FindRequest& request) {
  codec(request.names);
}
template <class Codec>
void fields(Codec& codec, FindReply& reply) {
  codec(reply.variables, reply.is_ready);
}
template <class Codec>
void fields(Codec& codec, EraseRequest& request) {
  codec(request.variables);
  codec.only_tensors(request.keys);
  if constexpr (Codec::kReads) {
    COHORT_CHECK(request.keys.empty() || request.keys.size() == request.variables.size(),
                 ErrorCode::data_loss, "[rpc.messages] broken erase request: expected keys of ",
                 request.variables.size(), " tables, got of ", request.keys.size());
  }
}

template <class Codec>
void fields(Codec& codec, PushReply& reply) {
  codec(reply.was_applied, reply.pulled);
}

template <class Codec>
void fields(Codec& codec, ClosureCall& call) {
  codec(call.closure_id, call.function_id, Fixed{call.seed}, call.resources, call.epoch_step,
        call.snapshot, call.inputs);
}

template <class Codec>
void fields(Codec& codec, RunBatch& batch) {
  codec(batch.low_watermark, batch.closures);
}

template <class Codec>
void fields(Codec& codec, ClosureEnd& end) {
  codec(end.closure_id, Choice(end.status, ClosureEnd::Status::end_of_data, "a closure's status"),
        end.pulled_bytes, end.pushed_bytes, end.pushes_dropped, end.rows, end.error, end.files,
        end.tensors);
}

template <class Codec>
void fields(Codec& codec, CompletedBatch& batch) {
  codec(batch.ends);
}

template <class Codec>
void fields(Codec& codec, CancelRequest& cancel) {
  codec(cancel.closures);
}

template <class Codec>
void fields(Codec& codec, PeekRequest& peek) {
  codec(peek.resource, peek.count);
}

template <class Codec>
void fields(Codec& codec, PeekReply& reply) {
  codec(reply.fields);
  codec.only_tensors(reply.tensors);
  if constexpr (Codec::kReads) {
    const std::size_t tensors = reply.tensors.size();
    COHORT_CHECK(reply.fields == 0 ? tensors == 0 : tensors % reply.fields == 0,
                 ErrorCode::data_loss, "[rpc.messages] broken peek reply: expected a multiple of ",
                 reply.fields, " tensors, got ", tensors);
  }
}

template <class Codec>
void fields(Codec& codec, ProgramRequest& request) {
  codec(request.resource, request.function);
  codec.only_tensors(request.element);
}

template <class Codec>
void fields(Codec& codec, ProgramReply& reply) {
  codec(reply.resource, reply.function, reply.element, reply.error, reply.program);
  if constexpr (Codec::kReads) {
    for (const TensorSpec& field : reply.element)
      if (!field.sizes) codec.fail("an element's sizes");
  }
}

Frame ping_frame() {
  return {.role = Frame::Role::request, .type = static_cast<std::uint16_t>(MessageType::ping)};
}

template <class Message>
Frame Conversion<Message>::to_frame(Message message) {
  FieldWriter out;
  fields(out, message);
  return {.type = static_cast<std::uint16_t>(Message::kKind.type),
          .metadata = out.take_bytes(),
          .tensors = out.take_tensors()};
}

template <class Message>
Message Conversion<Message>::message_of(Frame frame) {
  const auto [type, name] = Message::kKind;
  COHORT_CHECK(frame.type == static_cast<std::uint16_t>(type), ErrorCode::data_loss,
               "[rpc.messages] expected a ", name, " (type ", static_cast<int>(type),
               "), got a frame of type ", frame.type);
  FieldReader in(frame.metadata, name, std::move(frame.tensors));
  Message message;
  fields(in, message);
  in.expect_end();
  return message;
}

template struct COHORT_API Conversion<Hello>;
template struct COHORT_API Conversion<HelloReply>;
template struct COHORT_API Conversion<PullRequest>;
template struct COHORT_API Conversion<PullReply>;
template struct COHORT_API Conversion<PushRequest>;
template struct COHORT_API Conversion<PushReply>;
template struct COHORT_API Conversion<ExportRequest>;
template struct COHORT_API Conversion<ExportReply>;
template struct COHORT_API Conversion<CutRequest>;
template struct COHORT_API Conversion<CutExport>;
template struct COHORT_API Conversion<SnapshotRequest>;
template struct COHORT_API Conversion<ImportRequest>;
template struct COHORT_API Conversion<EraseRequest>;
template struct COHORT_API Conversion<DoneReply>;
template struct COHORT_API Conversion<AnnounceRequest>;
template struct COHORT_API Conversion<FindRequest>;
template struct COHORT_API Conversion<FindReply>;
template struct COHORT_API Conversion<RunBatch>;
template struct COHORT_API Conversion<CompletedBatch>;
template struct COHORT_API Conversion<CancelRequest>;
template struct COHORT_API Conversion<PeekRequest>;
template struct COHORT_API Conversion<PeekReply>;
template struct COHORT_API Conversion<ProgramRequest>;
template struct COHORT_API Conversion<ProgramReply>;

}  // namespace cohort::rpc
