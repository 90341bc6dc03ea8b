// SPDX-License-Identifier: Apache-2.0
#include "cohort/rpc/detail/messages.h"

#include <iterator>
#include <span>
#include <string_view>
#include <utility>

#include "cohort/core/detail/error_bytes.h"

namespace cohort::rpc {
namespace {

using Tensors = std::vector<at::Tensor>;

Frame frame_of(MessageType type, ByteWriter& out, Tensors tensors = {}) {
  return {.type = static_cast<std::uint16_t>(type),
          .metadata = out.take(),
          .tensors = std::move(tensors)};
}

ByteReader open(const Frame& frame, MessageType type, std::string_view what) {
  COHORT_CHECK(frame.type == static_cast<std::uint16_t>(type), ErrorCode::data_loss,
               "[rpc.messages] expected a ", what, " (type ", static_cast<int>(type),
               "), got a frame of type ", frame.type);
  return ByteReader(frame.metadata, what);
}

// A message's tensors follow each other in the frame; its metadata holds only the counts.
void put_tensors(ByteWriter& out, Tensors& all, Tensors& own) {
  out.varint(own.size());
  all.insert(all.end(), std::move_iterator(own.begin()), std::move_iterator(own.end()));
}

// Returns the tensors of a frame in order. Thread-compatible.
class TensorReader {
 public:
  TensorReader(Tensors& tensors, std::string_view what) : tensors_(tensors), what_(what) {}

  Tensors take(std::uint64_t count) {
    COHORT_CHECK(count <= tensors_.size() - next_, ErrorCode::data_loss, "[rpc.messages] broken ",
                 what_, ": expected ", count, " more tensors, got ", tensors_.size() - next_);
    const auto begin = std::move_iterator(tensors_.begin() + static_cast<std::ptrdiff_t>(next_));
    next_ += count;
    return Tensors(begin, begin + static_cast<std::ptrdiff_t>(count));
  }

  void expect_end() const {
    COHORT_CHECK(next_ == tensors_.size(), ErrorCode::data_loss, "[rpc.messages] broken ", what_,
                 ": expected ", next_, " tensors, got ", tensors_.size());
  }

 private:
  Tensors& tensors_;
  std::string_view what_;
  std::size_t next_ = 0;
};

template <class Enum>
Enum read_enum(ByteReader& in, Enum last, std::string_view expected) {
  const std::uint8_t value = in.u8();
  if (value > static_cast<std::uint8_t>(last)) in.fail(expected);
  return static_cast<Enum>(value);
}

bool read_bool(ByteReader& in) {
  const std::uint8_t value = in.u8();
  if (value > 1) in.fail("0 or 1");
  return value == 1;
}

Frame yes_or_no(MessageType type, bool answer) {
  ByteWriter out;
  out.u8(answer ? 1 : 0);
  return frame_of(type, out);
}

bool is_yes(const Frame& frame, MessageType type, std::string_view what) {
  ByteReader in = open(frame, type, what);
  const bool answer = read_bool(in);
  in.expect_end();
  return answer;
}

void write_ids(ByteWriter& out, const std::vector<std::uint64_t>& ids) {
  out.varint(ids.size());
  for (const std::uint64_t id : ids) out.varint(id);
}

std::vector<std::uint64_t> read_ids(ByteReader& in) {
  std::vector<std::uint64_t> ids(in.count());
  for (std::uint64_t& id : ids) id = in.varint();
  return ids;
}

void write_effect(ByteWriter& out, Effect& effect, Tensors& tensors) {
  out.u8(static_cast<std::uint8_t>(effect.kind));
  out.varint(effect.variable);
  out.text(effect.rule);
  out.text(effect.optimizer);
  out.varint(effect.hyper.size());
  for (const double value : effect.hyper) out.f64(value);
  out.varint(effect.version);
  put_tensors(out, tensors, effect.tensors);
}

Effect read_effect(ByteReader& in, TensorReader& tensors) {
  Effect effect;
  effect.kind = read_enum(in, Effect::Kind::merge_average, "a kind of effect");
  effect.variable = in.varint();
  effect.rule = in.text();
  effect.optimizer = in.text();
  effect.hyper.resize(in.count(sizeof(double)));
  for (double& value : effect.hyper) value = in.f64();
  effect.version = in.varint();
  effect.tensors = tensors.take(in.varint());
  return effect;
}

void write_call(ByteWriter& out, ClosureCall& call, Tensors& tensors) {
  out.varint(call.closure_id);
  out.varint(call.function_id);
  out.u64(call.seed);
  write_ids(out, call.resources);
  out.varint(call.epoch_step ? *call.epoch_step + 1 : 0);
  put_tensors(out, tensors, call.inputs);
}

std::uint32_t read_u32(ByteReader& in) {
  const std::uint64_t value = in.varint();
  if (value > 0xffffffff) in.fail("an integer of at most 32 bits");
  return static_cast<std::uint32_t>(value);
}

ClosureCall read_call(ByteReader& in, TensorReader& tensors) {
  ClosureCall call;
  call.closure_id = in.varint();
  call.function_id = read_u32(in);
  call.seed = in.u64();
  call.resources = read_ids(in);
  if (const std::uint64_t step = in.varint(); step != 0) call.epoch_step = step - 1;
  call.inputs = tensors.take(in.varint());
  return call;
}

void write_file(ByteWriter& out, const FileFingerprint& file) {
  out.text(file.path);
  out.u8(file.is_missing ? 1 : 0);
  out.varint(file.size_bytes);
  out.zigzag(file.modified_ns);
  out.varint(file.checksum ? std::uint64_t{*file.checksum} + 1 : 0);
}

FileFingerprint read_file(ByteReader& in) {
  FileFingerprint file;
  file.path = in.text();
  file.is_missing = read_bool(in);
  file.size_bytes = in.varint();
  file.modified_ns = in.zigzag();
  const std::uint64_t checksum = in.varint();
  if (checksum > std::uint64_t{1} << 32) in.fail("a checksum of 32 bits");
  if (checksum > 0) file.checksum = static_cast<std::uint32_t>(checksum - 1);
  return file;
}

void write_end(ByteWriter& out, ClosureEnd& end, Tensors& tensors) {
  out.varint(end.closure_id);
  out.u8(static_cast<std::uint8_t>(end.status));
  out.varint(end.pulled_bytes);
  out.varint(end.pushed_bytes);
  out.varint(end.pushes_dropped);
  out.varint(end.rows);
  out.u8(end.error ? 1 : 0);
  if (end.error) write_error(out, *end.error);
  out.varint(end.files.size());
  for (const FileFingerprint& file : end.files) write_file(out, file);
  put_tensors(out, tensors, end.tensors);
}

ClosureEnd read_end(ByteReader& in, TensorReader& tensors) {
  ClosureEnd end;
  end.closure_id = in.varint();
  end.status = read_enum(in, ClosureEnd::Status::end_of_data, "a closure's status");
  end.pulled_bytes = in.varint();
  end.pushed_bytes = in.varint();
  end.pushes_dropped = in.varint();
  end.rows = in.varint();
  if (read_bool(in)) end.error = read_error(in);
  end.files.resize(in.count(5));
  for (FileFingerprint& file : end.files) file = read_file(in);
  end.tensors = tensors.take(in.varint());
  return end;
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
  return frame_of(MessageType::hello, out);
}

Hello hello_of(const Frame& frame) {
  ByteReader in = open(frame, MessageType::hello, "hello message");
  Hello message;
  message.task = in.text();
  message.job_id = in.text();
  message.coordinator_incarnation = in.u64();
  message.server_incarnation = in.u64();
  message.payload_checksums =
      read_enum(in, PayloadChecksums::always, "when payloads have checksums");
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
  return frame_of(MessageType::pull, out);
}

PullRequest pull_of(const Frame& frame) {
  ByteReader in = open(frame, MessageType::pull, "pull message");
  PullRequest message;
  message.variables = read_ids(in);
  message.wants_versions = read_bool(in);
  in.expect_end();
  return message;
}

Frame to_frame(PullReply message) {
  ByteWriter out;
  if (!message.versions.empty()) write_ids(out, message.versions);
  return frame_of(MessageType::pull, out, std::move(message.values));
}

PullReply pull_reply_of(Frame frame) {
  ByteReader in = open(frame, MessageType::pull, "pull reply");
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
  out.varint(message.closure_id);
  out.varint(message.low_watermark);
  out.u8(message.phase);
  out.varint(message.segment);
  out.varint(message.effects.size());
  for (Effect& effect : message.effects) write_effect(out, effect, tensors);
  return frame_of(MessageType::push, out, std::move(tensors));
}

PushRequest push_of(Frame frame) {
  ByteReader in = open(frame, MessageType::push, "push message");
  TensorReader tensors(frame.tensors, "push message");
  PushRequest message;
  message.closure_id = in.varint();
  message.low_watermark = in.varint();
  message.phase = in.u8();
  message.segment = read_u32(in);
  const std::size_t count = in.count(7);
  message.effects.reserve(count);
  for (std::size_t i = 0; i < count; ++i) message.effects.push_back(read_effect(in, tensors));
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

Frame to_frame(RunBatch message) {
  ByteWriter out;
  Tensors tensors;
  out.varint(message.low_watermark);
  out.varint(message.closures.size());
  for (ClosureCall& call : message.closures) write_call(out, call, tensors);
  return frame_of(MessageType::run, out, std::move(tensors));
}

RunBatch run_of(Frame frame) {
  ByteReader in = open(frame, MessageType::run, "run message");
  TensorReader tensors(frame.tensors, "run message");
  RunBatch message;
  message.low_watermark = in.varint();
  const std::size_t count = in.count(13);
  message.closures.reserve(count);
  for (std::size_t i = 0; i < count; ++i) message.closures.push_back(read_call(in, tensors));
  in.expect_end();
  tensors.expect_end();
  return message;
}

Frame to_frame(CompletedBatch message) {
  ByteWriter out;
  Tensors tensors;
  out.varint(message.ends.size());
  for (ClosureEnd& end : message.ends) write_end(out, end, tensors);
  return frame_of(MessageType::completed, out, std::move(tensors));
}

CompletedBatch completed_of(Frame frame) {
  ByteReader in = open(frame, MessageType::completed, "completed message");
  TensorReader tensors(frame.tensors, "completed message");
  CompletedBatch message;
  const std::size_t count = in.count(9);
  message.ends.reserve(count);
  for (std::size_t i = 0; i < count; ++i) message.ends.push_back(read_end(in, tensors));
  in.expect_end();
  tensors.expect_end();
  return message;
}

Frame to_frame(const CancelRequest& message) {
  ByteWriter out;
  write_ids(out, message.closures);
  return frame_of(MessageType::cancel, out);
}

CancelRequest cancel_of(const Frame& frame) {
  ByteReader in = open(frame, MessageType::cancel, "cancel message");
  CancelRequest message{read_ids(in)};
  in.expect_end();
  return message;
}

Frame to_frame(const PeekRequest& message) {
  ByteWriter out;
  out.varint(message.resource);
  out.varint(message.count);
  return frame_of(MessageType::peek, out);
}

PeekRequest peek_of(const Frame& frame) {
  ByteReader in = open(frame, MessageType::peek, "peek message");
  PeekRequest message;
  message.resource = in.varint();
  message.count = read_u32(in);
  in.expect_end();
  return message;
}

Frame to_frame(ProgramRequest message) {
  ByteWriter out;
  out.varint(message.resource);
  out.text(message.function);
  return frame_of(MessageType::program_request, out, std::move(message.element));
}

ProgramRequest program_request_of(Frame frame) {
  ByteReader in = open(frame, MessageType::program_request, "program request");
  ProgramRequest message;
  message.resource = in.varint();
  message.function = in.text();
  in.expect_end();
  message.element = std::move(frame.tensors);
  return message;
}

Frame to_frame(const ProgramReply& message) {
  ByteWriter out;
  out.varint(message.resource);
  out.text(message.function);
  out.varint(message.element.size());
  for (const TensorSpec& field : message.element) {
    out.u8(static_cast<std::uint8_t>(field.dtype));
    out.sizes(*field.sizes);
  }
  out.u8(message.error ? 1 : 0);
  if (message.error) {
    write_error(out, *message.error);
  } else {
    out.blob(message.program);
  }
  return frame_of(MessageType::program_reply, out);
}

ProgramReply program_reply_of(const Frame& frame) {
  ByteReader in = open(frame, MessageType::program_reply, "program reply");
  ProgramReply message;
  message.resource = in.varint();
  message.function = in.text();
  for (std::size_t left = in.count(2); left > 0; --left) {
    const auto dtype = read_enum(in, at::ScalarType::Undefined, "a dtype");
    message.element.push_back({.dtype = dtype, .sizes = in.sizes()});
  }
  if (read_bool(in)) {
    message.error = read_error(in);
  } else {
    const std::span<const std::byte> program = in.blob();
    message.program.assign(program.begin(), program.end());
  }
  in.expect_end();
  COHORT_CHECK(frame.tensors.empty(), ErrorCode::data_loss,
               "[rpc.messages] broken program reply: expected no tensors, got ",
               frame.tensors.size());
  return message;
}

Frame to_frame(PeekReply message) {
  ByteWriter out;
  out.varint(message.fields);
  return frame_of(MessageType::peek, out, std::move(message.tensors));
}

PeekReply peek_reply_of(Frame frame) {
  ByteReader in = open(frame, MessageType::peek, "peek reply");
  PeekReply message;
  message.fields = read_u32(in);
  in.expect_end();
  const bool is_whole =
      message.fields == 0 ? frame.tensors.empty() : frame.tensors.size() % message.fields == 0;
  COHORT_CHECK(is_whole, ErrorCode::data_loss, "[rpc.messages] broken peek reply: expected a ",
               "multiple of ", message.fields, " tensors, got ", frame.tensors.size());
  message.tensors = std::move(frame.tensors);
  return message;
}

}  // namespace cohort::rpc
