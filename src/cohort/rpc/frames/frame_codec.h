// SPDX-License-Identifier: Apache-2.0
// A frame as bytes (docs/formats/frame.md): 48 bytes of header, the metadata, a table of tensors,
// their payload, and a checksum of the payload if the header has the flag.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "cohort/rpc/frames/block_pool.h"
#include "cohort/rpc/frames/frame.h"

namespace cohort::rpc::internal {

inline constexpr std::uint32_t kFrameMagic = 0x46484f43;  // "COHF"
inline constexpr std::uint8_t kFrameVersion = 2;

// Little-endian, as on the wire.
struct FrameHeader {
  std::uint32_t magic = kFrameMagic;
  std::uint8_t version = kFrameVersion;
  std::uint8_t role = 0;
  std::uint16_t type = 0;
  std::uint64_t id = 0;
  std::uint32_t metadata_bytes = 0;
  std::uint32_t table_bytes = 0;
  std::uint64_t payload_bytes = 0;
  std::uint32_t number = 0;    // how many frames this end has sent before
  std::uint32_t head_sum = 0;  // CRC-32C of metadata and table
  std::uint32_t flags = 0;
  std::uint32_t sum = 0;  // CRC-32C of all fields before it

  static constexpr std::uint32_t kHasPayloadSum = 1;  // in flags: 4 bytes follow the payload

  std::size_t head_bytes() const;  // all before the payload
  bool has_payload_sum() const { return (flags & kHasPayloadSum) != 0; }
  std::uint32_t right_sum() const;
};
inline constexpr std::size_t kHeaderBytes = 48;
inline constexpr std::size_t kPayloadSumBytes = sizeof(std::uint32_t);
// Checksums of large payloads are computed in pieces of this size, which stay in a core's cache
// until the kernel has copied them.
inline constexpr std::size_t kSummedBytesMax = std::size_t{256} << 10;
static_assert(sizeof(FrameHeader) == kHeaderBytes);

// A tensor's place in the payload.
struct TensorSlot {
  at::ScalarType dtype;
  std::vector<std::int64_t> sizes;
  std::size_t offset;
  std::size_t bytes;
};

// Makes the tensors of a frame dense, contiguous and plain. Throws invalid_argument for a tensor
// that is not on the CPU.
void prepare_tensors(std::vector<at::Tensor>& tensors);
// The table for prepared tensors.
Bytes encode_table(const std::vector<at::Tensor>& tensors);
// The header for them, without the number and its own checksum. Throws invalid_argument if the
// metadata or the table exceeds 4 GiB.
FrameHeader header_of(const Frame& frame, const Bytes& table, bool has_payload_sum);
// Writes the number and the checksum into the header at the start of `bytes`.
void seal_header(std::span<std::byte> bytes, std::uint32_t number);
// The offset of the tensor that follows a tensor which ends at `end`.
std::size_t aligned(std::size_t end);

// Checks each field; the lengths only after the header's checksum. Throws data_loss, naming the
// field, if the frame is broken, larger than `frame_bytes_max`, or has another number.
FrameHeader decode_header(std::span<const std::byte> bytes, std::size_t frame_bytes_max,
                          std::uint32_t number);
// Throws data_loss if the checksums differ; `what` names the bytes in the message.
void check_sum(std::string_view what, std::uint32_t expected, std::uint32_t got);
// Accepts any bytes: throws data_loss unless the tensors of the table fill exactly `payload_bytes`.
std::vector<TensorSlot> decode_table(std::span<const std::byte> bytes, std::size_t payload_bytes);
// Views of the block, which keep it alive. Small tensors of a large block are copied instead.
std::vector<at::Tensor> make_tensors(const std::vector<TensorSlot>& slots, Block* payload);
// A view of the block from this offset on, which keeps it alive.
at::Tensor view_of(Block* block, std::size_t offset, at::IntArrayRef sizes, at::ScalarType dtype);
// Copies the tensors into one block, as a receiver would get them.
std::vector<at::Tensor> copy_tensors(const std::vector<at::Tensor>& tensors);

}  // namespace cohort::rpc::internal
