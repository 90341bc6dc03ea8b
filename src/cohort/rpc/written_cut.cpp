// SPDX-License-Identifier: Apache-2.0
#include "cohort/rpc/written_cut.h"

#include <utility>

#include "cohort/core/fields.h"

namespace cohort::rpc {
namespace {

constexpr std::string_view kWriteName = "request to write a cut";
constexpr std::string_view kWrittenName = "answer to a request to write a cut";
constexpr auto kType = static_cast<std::uint16_t>(MessageType::write_cut);

void check_type(const Frame& frame, std::string_view name) {
  COHORT_CHECK(frame.type == kType, ErrorCode::data_loss, "[rpc.messages] expected a ", name,
               " (type ", kType, "), got a frame of type ", frame.type);
}

}  // namespace

template <class Codec>
void fields(Codec& codec, CutWrite::Rows& rows) {
  codec(rows.stored, rows.name, rows.spec, rows.first_row, rows.count, rows.is_table);
}
template <class Codec>
void fields(Codec& codec, CutWrite& request) {
  codec(Fixed{request.cut}, request.is_end, request.placement, request.folder, request.proof_name,
        request.proof_text, request.prefix, request.header_room, request.rows);
}
template <class Codec>
void fields(Codec& codec, CutWritten& reply) {
  codec(reply.progress, reply.is_done, reply.share, reply.number_names, reply.numbers);
  if constexpr (Codec::kReads) {
    COHORT_CHECK(reply.number_names.size() == reply.numbers.size(), ErrorCode::data_loss,
                 "[rpc.messages] broken answer to a request to write a cut: expected ",
                 reply.number_names.size(), " numbers, got ", reply.numbers.size());
  }
}

Frame CutWrite::to_frame() {
  FieldWriter out;
  fields(out, *this);
  return {.type = kType, .metadata = out.take_bytes()};
}

CutWrite CutWrite::of(const Frame& frame) {
  check_type(frame, kWriteName);
  FieldReader in(frame.metadata, kWriteName);
  CutWrite request;
  fields(in, request);
  in.expect_end();
  return request;
}

Frame CutWritten::to_frame() {
  FieldWriter out;
  fields(out, *this);
  return {.type = kType, .metadata = out.take_bytes(), .tensors = out.take_tensors()};
}

CutWritten CutWritten::of(Frame frame) {
  check_type(frame, kWrittenName);
  FieldReader in(frame.metadata, kWrittenName, std::move(frame.tensors));
  CutWritten reply;
  fields(in, reply);
  in.expect_end();
  return reply;
}

}  // namespace cohort::rpc
