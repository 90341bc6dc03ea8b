// SPDX-License-Identifier: Apache-2.0
#include "cohort/rpc/frames/message_codec.h"

#include <iterator>
#include <utility>

#include "cohort/core/error.h"

namespace cohort::rpc {

Frame frame_of(MessageType type, ByteWriter& out, Tensors tensors) {
  return {.type = static_cast<std::uint16_t>(type),
          .metadata = out.take(),
          .tensors = std::move(tensors)};
}

ByteReader reader_of(const Frame& frame, MessageType type, std::string_view what) {
  COHORT_CHECK(frame.type == static_cast<std::uint16_t>(type), ErrorCode::data_loss,
               "[rpc.messages] expected a ", what, " (type ", static_cast<int>(type),
               "), got a frame of type ", frame.type);
  return ByteReader(frame.metadata, what);
}

void put_tensors(ByteWriter& out, Tensors& all, Tensors& own) {
  out.varint(own.size());
  all.insert(all.end(), std::move_iterator(own.begin()), std::move_iterator(own.end()));
}

Tensors TensorReader::take(std::uint64_t count) {
  COHORT_CHECK(count <= tensors_.size() - next_, ErrorCode::data_loss, "[rpc.messages] broken ",
               what_, ": expected ", count, " more tensors, got ", tensors_.size() - next_);
  const auto begin = std::move_iterator(tensors_.begin() + static_cast<std::ptrdiff_t>(next_));
  next_ += count;
  return Tensors(begin, begin + static_cast<std::ptrdiff_t>(count));
}

void TensorReader::expect_end() const {
  COHORT_CHECK(next_ == tensors_.size(), ErrorCode::data_loss, "[rpc.messages] broken ", what_,
               ": expected ", next_, " tensors, got ", tensors_.size());
}

bool read_bool(ByteReader& in) {
  const std::uint8_t value = in.u8();
  if (value > 1) in.fail("0 or 1");
  return value == 1;
}

std::uint32_t read_u32(ByteReader& in) {
  const std::uint64_t value = in.varint();
  if (value > 0xffffffff) in.fail("an integer of at most 32 bits");
  return static_cast<std::uint32_t>(value);
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

}  // namespace cohort::rpc
