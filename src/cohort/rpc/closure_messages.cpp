// SPDX-License-Identifier: Apache-2.0
// The messages between a coordinator and its workers: closures, and the elements and programs that
// they need.
#include <span>
#include <utility>

#include "cohort/core/error_bytes.h"
#include "cohort/rpc/frames/message_codec.h"
#include "cohort/rpc/messages.h"

namespace cohort::rpc {
namespace {

void write_call(ByteWriter& out, ClosureCall& call, Tensors& tensors) {
  out.varint(call.closure_id);
  out.varint(call.function_id);
  out.u64(call.seed);
  write_ids(out, call.resources);
  out.varint(call.epoch_step ? *call.epoch_step + 1 : 0);
  put_tensors(out, tensors, call.inputs);
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
  end.files = read_list(in, 5, [&] { return read_file(in); });
  end.tensors = tensors.take(in.varint());
  return end;
}

}  // namespace

Frame to_frame(RunBatch message) {
  ByteWriter out;
  Tensors tensors;
  out.varint(message.low_watermark);
  out.varint(message.closures.size());
  for (ClosureCall& call : message.closures) write_call(out, call, tensors);
  return frame_of(MessageType::run, out, std::move(tensors));
}

RunBatch run_of(Frame frame) {
  ByteReader in = reader_of(frame, MessageType::run, "run message");
  TensorReader tensors(frame.tensors, "run message");
  RunBatch message;
  message.low_watermark = in.varint();
  message.closures = read_list(in, 13, [&] { return read_call(in, tensors); });
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
  ByteReader in = reader_of(frame, MessageType::completed, "completed message");
  TensorReader tensors(frame.tensors, "completed message");
  CompletedBatch message;
  message.ends = read_list(in, 9, [&] { return read_end(in, tensors); });
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
  ByteReader in = reader_of(frame, MessageType::cancel, "cancel message");
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
  ByteReader in = reader_of(frame, MessageType::peek, "peek message");
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
  ByteReader in = reader_of(frame, MessageType::program_request, "program request");
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
  ByteReader in = reader_of(frame, MessageType::program_reply, "program reply");
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
  ByteReader in = reader_of(frame, MessageType::peek, "peek reply");
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
