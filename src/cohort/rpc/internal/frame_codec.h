// SPDX-License-Identifier: Apache-2.0
// A frame as bytes (docs/formats/frame.md): 48 bytes of header, the metadata, a table of tensors,
// their payload, and its checksum where the header says so.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "cohort/rpc/detail/frame.h"
#include "cohort/rpc/internal/block_pool.h"

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
  std::uint32_t number = 0;    // how many frames this end sent before
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

// Makes the tensors of a frame to be sent dense, contiguous and plain; invalid_argument for what is
// not a CPU tensor.
void prepare_tensors(std::vector<at::Tensor>& tensors);
// The table for prepared tensors.
Bytes encode_table(const std::vector<at::Tensor>& tensors);
// The header for them, without the number and its own checksum; invalid_argument if the metadata or
// the table exceeds 4 GiB.
FrameHeader header_of(const Frame& frame, const Bytes& table, bool has_payload_sum);
// Writes both into the header at the start of `bytes`.
void seal_header(std::span<std::byte> bytes, std::uint32_t number);
// The offset of a tensor that follows one that ends at `end`.
std::size_t aligned(std::size_t end);

// Checks each field, the lengths only after the header's checksum. data_loss that names the field
// for a frame that is broken, larger than `frame_bytes_max` or not the one of this number.
FrameHeader decode_header(std::span<const std::byte> bytes, std::size_t frame_bytes_max,
                          std::uint32_t number);
// data_loss unless the checksums are equal; `what` names the bytes in the message.
void check_sum(std::string_view what, std::uint32_t expected, std::uint32_t got);
// Accepts any bytes: data_loss unless the tensors of the table fill exactly `payload_bytes`.
std::vector<TensorSlot> decode_table(std::span<const std::byte> bytes, std::size_t payload_bytes);
// Views of the block, which keep it alive; small ones of a large block are copied, so as not to
// keep it.
std::vector<at::Tensor> make_tensors(const std::vector<TensorSlot>& slots, Block* payload);
// Copies in one block, as a receiver of prepared tensors would get them.
std::vector<at::Tensor> copy_tensors(const std::vector<at::Tensor>& tensors);

}  // namespace cohort::rpc::internal
