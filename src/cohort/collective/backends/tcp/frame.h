// SPDX-License-Identifier: Apache-2.0
// Members send each other frames with values, and messages about the end of a group.
#pragma once

#include <sys/uio.h>

#include <c10/util/SmallVector.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cohort/core/bytes.h"
#include "cohort/core/error.h"

namespace cohort::collective::tcp {

enum class FrameKind : std::uint8_t {
  offer = 0,         // begins a call; small values are its payload
  contribution = 1,  // a member's values for the share of the receiver
  values = 2,        // results, or values that are copied
  spec = 3,          // the whole call, after members have found that theirs differ
};

// The first bytes of a frame, as they are sent. Both sides have the byte order of the tensors,
// which are sent as they lie in memory: another order is refused as a wrong magic number.
struct FrameHeader {
  std::uint32_t magic = 0;
  std::uint32_t sender = 0;
  std::uint64_t frame = 0;  // the number of frames before it on this connection
  std::uint64_t call = 0;
  std::uint64_t fingerprint = 0;
  std::uint64_t offset = 0;  // of contribution and values: the bytes of this kind before these
  std::int64_t total = 0;    // of offer: bytes in exchange(), length along the axis in all_gather()
  std::uint32_t length = 0;  // of the payload
  std::uint32_t payload_checksum = 0;
  FrameKind kind = FrameKind::offer;
  bool is_refused = false;
  bool has_values = false;  // of offer: the payload is all that the member sends
  std::uint8_t unused = 0;
  std::uint32_t checksum = 0;  // of all bytes before it
};
inline constexpr std::size_t kHeaderBytes = 64;
static_assert(sizeof(FrameHeader) == kHeaderBytes);

// Memory of a payload, in the order in which it is sent.
using Pieces = c10::SmallVector<iovec, 8>;
inline iovec piece_of(std::byte* data, std::int64_t bytes) {
  return {data, static_cast<std::size_t>(bytes)};
}
std::size_t bytes_of(const Pieces& pieces);
std::uint32_t checksum_of(const Pieces& pieces);

// Fills the fields that do not depend on the content. `checks_payload`: with its checksum.
void seal(FrameHeader& header, const Pieces& payload, bool checks_payload = true);
// Why these bytes are not the header of this frame; nullptr if they are.
const char* fault_of(const FrameHeader& header, int sender, std::uint64_t frame);

// The last message of a member: it leaves, or it ends the group because of other members.
struct Farewell {
  std::uint64_t call = 0;          // the first call in which it takes no part
  std::vector<int> culprits = {};  // empty: it leaves
  ErrorCode code = ErrorCode::aborted;
  std::string why = {};
};
Bytes encoded(const Farewell& farewell);
// nullopt: more bytes must come. Throws data_loss.
std::optional<Farewell> decoded_farewell(std::span<const std::byte> bytes, int size);

}  // namespace cohort::collective::tcp
