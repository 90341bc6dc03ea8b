// SPDX-License-Identifier: Apache-2.0
// The messages of every connection, and those about variables. closure_messages.cpp has the others.
#include "cohort/rpc/messages.h"

#include <string_view>
#include <utility>

#include "cohort/rpc/frames/message_codec.h"

namespace cohort::rpc {
namespace {

Frame yes_or_no(MessageType type, bool answer) {
  ByteWriter out;
  out.u8(answer ? 1 : 0);
  return frame_of(type, out);
}

bool is_yes(const Frame& frame, MessageType type, std::string_view what) {
  ByteReader in = reader_of(frame, type, what);
  const bool answer = read_bool(in);
  in.expect_end();
  return answer;
}

void write_effect(ByteWriter& out, Effect& effect, Tensors& tensors) {
  out.u8(static_cast<std::uint8_t>(effect.kind));
  out.varint(effect.variable);
  out.text(effect.rule);
  out.text(effect.optimizer);
  out.varint(effect.hyper.size());
  for (const double value : effect.hyper) out.f64(value);
  out.varint(effect.version);
  out.u8(effect.row_ids.defined() ? 1 : 0);
  if (effect.row_ids.defined())
    effect.tensors.insert(effect.tensors.begin(), std::move(effect.row_ids));
  put_tensors(out, tensors, effect.tensors);
}

Effect read_effect(ByteReader& in, TensorReader& tensors) {
  Effect effect;
  effect.kind = read_enum(in, Effect::kLastKind, "a kind of effect");
  effect.variable = in.varint();
  effect.rule = in.text();
  effect.optimizer = in.text();
  effect.hyper.resize(in.count(sizeof(double)));
  for (double& value : effect.hyper) value = in.f64();
  effect.version = in.varint();
  const bool has_row_ids = read_bool(in);
  effect.tensors = tensors.take(in.varint());
  if (has_row_ids) {
    COHORT_CHECK(!effect.tensors.empty(), ErrorCode::data_loss,
                 "[rpc.messages] broken push message: expected the row ids of an effect, got none");
    effect.row_ids = std::move(effect.tensors.front());
    effect.tensors.erase(effect.tensors.begin());
  }
  return effect;
}

}  // namespace

Frame ping_frame() {
  return {.role = Frame::Role::request, .type = static_cast<std::uint16_t>(MessageType::ping)};
}

Frame to_frame(const Hello& message) {
  ByteWriter out;
  out.text(message.task);
  out.text(message.job_id);
  out.u64(message.coordinator_incarnation);
  out.u64(message.server_incarnation);
  out.u8(static_cast<std::uint8_t>(message.payload_checksums));
  for (const std::uint64_t hash : {message.host.host, message.host.local, message.host.remote})
    out.u64(hash);
  return frame_of(MessageType::hello, out);
}

Hello hello_of(const Frame& frame) {
  ByteReader in = reader_of(frame, MessageType::hello, "hello message");
  Hello message;
  message.task = in.text();
  message.job_id = in.text();
  message.coordinator_incarnation = in.u64();
  message.server_incarnation = in.u64();
  message.payload_checksums =
      read_enum(in, PayloadChecksums::always, "when payloads have checksums");
  message.host = {.host = in.u64(), .local = in.u64(), .remote = in.u64()};
  in.expect_end();
  return message;
}

Frame to_frame(const HelloReply& message) {
  return yes_or_no(MessageType::hello, message.has_payload_sums);
}

HelloReply hello_reply_of(const Frame& frame) {
  return {is_yes(frame, MessageType::hello, "hello reply")};
}

Frame to_frame(const PullRequest& message) {
  ByteWriter out;
  write_ids(out, message.variables);
  out.u8(message.wants_versions ? 1 : 0);
  out.varint(message.placement);
  return frame_of(MessageType::pull, out);
}

PullRequest pull_of(const Frame& frame) {
  ByteReader in = reader_of(frame, MessageType::pull, "pull message");
  PullRequest message;
  message.variables = read_ids(in);
  message.wants_versions = read_bool(in);
  message.placement = in.varint();
  in.expect_end();
  return message;
}

Frame to_frame(PullReply message) {
  ByteWriter out;
  if (!message.versions.empty()) write_ids(out, message.versions);
  return frame_of(MessageType::pull, out, std::move(message.values));
}

PullReply pull_reply_of(Frame frame) {
  ByteReader in = reader_of(frame, MessageType::pull, "pull reply");
  PullReply message;
  if (!frame.metadata.empty()) message.versions = read_ids(in);
  in.expect_end();
  COHORT_CHECK(message.versions.empty() || message.versions.size() == frame.tensors.size(),
               ErrorCode::data_loss, "[rpc.messages] broken pull reply: expected ",
               frame.tensors.size(), " versions, got ", message.versions.size());
  message.values = std::move(frame.tensors);
  return message;
}

Frame to_frame(PushRequest message) {
  ByteWriter out;
  Tensors tensors;
  out.varint(message.id.origin);
  out.u64(message.id.incarnation);
  out.varint(message.id.number);
  out.varint(message.id.segment);
  out.varint(message.low_watermark);
  out.varint(message.placement);
  out.varint(message.effects.size());
  for (Effect& effect : message.effects) write_effect(out, effect, tensors);
  return frame_of(MessageType::push, out, std::move(tensors));
}

PushRequest push_of(Frame frame) {
  ByteReader in = reader_of(frame, MessageType::push, "push message");
  TensorReader tensors(frame.tensors, "push message");
  PushRequest message;
  message.id.origin = in.varint();
  message.id.incarnation = in.u64();
  message.id.number = in.varint();
  message.id.segment = read_u32(in);
  message.low_watermark = in.varint();
  message.placement = in.varint();
  message.effects = read_list(in, 8, [&] { return read_effect(in, tensors); });
  in.expect_end();
  tensors.expect_end();
  return message;
}

Frame to_frame(const PushReply& message) {
  return yes_or_no(MessageType::push, message.was_applied);
}

PushReply push_reply_of(const Frame& frame) {
  return {is_yes(frame, MessageType::push, "push reply")};
}

}  // namespace cohort::rpc
