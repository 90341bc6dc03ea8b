// SPDX-License-Identifier: Apache-2.0
#include "cohort/rpc/messages.h"

#include <string_view>
#include <utility>

#include "cohort/core/fields.h"

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
  codec(pull.variables, pull.wants_versions, pull.placement);
}

template <class Codec>
void fields(Codec& codec, PullReply& reply) {
  codec(reply.versions);
  codec.only_tensors(reply.values);
  if constexpr (Codec::kReads) {
    COHORT_CHECK(reply.versions.empty() || reply.versions.size() == reply.values.size(),
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
  codec(push.id, push.low_watermark, push.placement, push.effects);
}

template <class Codec>
void fields(Codec& codec, AppliedRecord::Push& push) {
  codec(push.number, push.segment);
}
template <class Codec>
void fields(Codec& codec, AppliedRecord& record) {
  codec(record.origin, Fixed{record.incarnation}, record.low_watermark, record.applied);
}
template <class Codec>
void fields(Codec& codec, StateRange& range) {
  codec(range.variable, range.first_row, range.rows);
}
template <class Codec>
void fields(Codec& codec, StateOfRange& state) {
  codec(state.range, state.version, state.value, state.slots);
}
template <class Codec>
void fields(Codec& codec, ExportRequest& request) {
  codec(request.placement, request.ranges, request.has_slots, request.has_applied);
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
void fields(Codec& codec, EraseRequest& request) {
  codec(request.variables);
}

template <class Codec>
void fields(Codec& codec, PushReply& reply) {
  codec(reply.was_applied);
}

template <class Codec>
void fields(Codec& codec, ClosureCall& call) {
  codec(call.closure_id, call.function_id, Fixed{call.seed}, call.resources, call.epoch_step,
        call.inputs);
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

namespace {

template <class Message>
Frame frame_of(MessageType type, Message& message) {
  FieldWriter out;
  fields(out, message);
  return {.type = static_cast<std::uint16_t>(type),
          .metadata = out.take_bytes(),
          .tensors = out.take_tensors()};
}

// Only tensors are moved out of a message, and these have none.
template <class Message>
Frame frame_of(MessageType type, const Message& message) {
  return frame_of(type, const_cast<Message&>(message));  // NOLINT
}

// data_loss, naming `what`, if the frame is of another type.
template <class Message>
Message message_of(const Frame& frame, std::vector<at::Tensor> tensors, MessageType type,
                   std::string_view what) {
  COHORT_CHECK(frame.type == static_cast<std::uint16_t>(type), ErrorCode::data_loss,
               "[rpc.messages] expected a ", what, " (type ", static_cast<int>(type),
               "), got a frame of type ", frame.type);
  FieldReader in(frame.metadata, what, std::move(tensors));
  Message message;
  fields(in, message);
  in.expect_end();
  return message;
}

template <class Message>
Message message_of(Frame& frame, MessageType type, std::string_view what) {
  return message_of<Message>(frame, std::move(frame.tensors), type, what);
}

template <class Message>
Message message_of(const Frame& frame, MessageType type, std::string_view what) {
  return message_of<Message>(frame, frame.tensors, type, what);
}

}  // namespace

Frame done_frame(MessageType type) {
  return {.role = Frame::Role::response, .type = static_cast<std::uint16_t>(type)};
}

Frame ping_frame() {
  return {.role = Frame::Role::request, .type = static_cast<std::uint16_t>(MessageType::ping)};
}

Frame to_frame(const Hello& message) { return frame_of(MessageType::hello, message); }
Frame to_frame(const HelloReply& message) { return frame_of(MessageType::hello, message); }
Frame to_frame(const PullRequest& message) { return frame_of(MessageType::pull, message); }
Frame to_frame(PullReply message) { return frame_of(MessageType::pull, message); }
Frame to_frame(PushRequest message) { return frame_of(MessageType::push, message); }
Frame to_frame(const PushReply& message) { return frame_of(MessageType::push, message); }
Frame to_frame(const ExportRequest& message) {
  return frame_of(MessageType::export_state, message);
}
Frame to_frame(ExportReply message) { return frame_of(MessageType::export_state, message); }
Frame to_frame(ImportRequest message) { return frame_of(MessageType::import_state, message); }
Frame to_frame(const EraseRequest& message) { return frame_of(MessageType::erase, message); }
Frame to_frame(RunBatch message) { return frame_of(MessageType::run, message); }
Frame to_frame(CompletedBatch message) { return frame_of(MessageType::completed, message); }
Frame to_frame(const PeekRequest& message) { return frame_of(MessageType::peek, message); }
Frame to_frame(const CancelRequest& message) { return frame_of(MessageType::cancel, message); }
Frame to_frame(PeekReply message) { return frame_of(MessageType::peek, message); }
Frame to_frame(ProgramRequest message) { return frame_of(MessageType::program_request, message); }
Frame to_frame(const ProgramReply& message) {
  return frame_of(MessageType::program_reply, message);
}

Hello hello_of(const Frame& frame) {
  return message_of<Hello>(frame, MessageType::hello, "hello message");
}
HelloReply hello_reply_of(const Frame& frame) {
  return message_of<HelloReply>(frame, MessageType::hello, "hello reply");
}
PullRequest pull_of(const Frame& frame) {
  return message_of<PullRequest>(frame, MessageType::pull, "pull message");
}
PullReply pull_reply_of(Frame frame) {
  return message_of<PullReply>(frame, MessageType::pull, "pull reply");
}
PushRequest push_of(Frame frame) {
  return message_of<PushRequest>(frame, MessageType::push, "push message");
}
PushReply push_reply_of(const Frame& frame) {
  return message_of<PushReply>(frame, MessageType::push, "push reply");
}
ExportRequest export_of(const Frame& frame) {
  return message_of<ExportRequest>(frame, MessageType::export_state, "export request");
}
ExportReply export_reply_of(Frame frame) {
  return message_of<ExportReply>(frame, MessageType::export_state, "export reply");
}
ImportRequest import_of(Frame frame) {
  return message_of<ImportRequest>(frame, MessageType::import_state, "import request");
}
EraseRequest erase_of(const Frame& frame) {
  return message_of<EraseRequest>(frame, MessageType::erase, "erase request");
}
RunBatch run_of(Frame frame) {
  return message_of<RunBatch>(frame, MessageType::run, "run message");
}
CompletedBatch completed_of(Frame frame) {
  return message_of<CompletedBatch>(frame, MessageType::completed, "completed message");
}
PeekRequest peek_of(const Frame& frame) {
  return message_of<PeekRequest>(frame, MessageType::peek, "peek message");
}
CancelRequest cancel_of(const Frame& frame) {
  return message_of<CancelRequest>(frame, MessageType::cancel, "cancel message");
}
PeekReply peek_reply_of(Frame frame) {
  return message_of<PeekReply>(frame, MessageType::peek, "peek reply");
}
ProgramRequest program_request_of(Frame frame) {
  return message_of<ProgramRequest>(frame, MessageType::program_request, "program request");
}
ProgramReply program_reply_of(const Frame& frame) {
  return message_of<ProgramReply>(frame, MessageType::program_reply, "program reply");
}

}  // namespace cohort::rpc
