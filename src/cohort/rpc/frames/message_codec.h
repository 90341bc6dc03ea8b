// SPDX-License-Identifier: Apache-2.0
// Functions that the encodings of all messages of messages.h share.
#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

#include "cohort/core/bytes.h"
#include "cohort/rpc/messages.h"

namespace cohort::rpc {

using Tensors = std::vector<at::Tensor>;

Frame frame_of(MessageType type, ByteWriter& out, Tensors tensors = {});
// The frame's metadata. data_loss, naming `what`, if the frame is of another type.
ByteReader reader_of(const Frame& frame, MessageType type, std::string_view what);

// A message's tensors follow each other in the frame; its metadata holds only the counts.
void put_tensors(ByteWriter& out, Tensors& all, Tensors& own);

// Returns the tensors of a frame in order. Thread-compatible.
class TensorReader {
 public:
  TensorReader(Tensors& tensors, std::string_view what) : tensors_(tensors), what_(what) {}
  Tensors take(std::uint64_t count);
  void expect_end() const;

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

// Reads a list that its length precedes. `least_bytes`: the size of the smallest item.
template <class Read>
auto read_list(ByteReader& in, std::size_t least_bytes, const Read& read) {
  const std::size_t count = in.count(least_bytes);
  std::vector<decltype(read())> items;
  items.reserve(count);
  for (std::size_t i = 0; i < count; ++i) items.push_back(read());
  return items;
}

bool read_bool(ByteReader& in);
std::uint32_t read_u32(ByteReader& in);
void write_ids(ByteWriter& out, const std::vector<std::uint64_t>& ids);
std::vector<std::uint64_t> read_ids(ByteReader& in);

}  // namespace cohort::rpc
