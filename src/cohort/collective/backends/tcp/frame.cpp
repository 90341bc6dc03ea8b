// SPDX-License-Identifier: Apache-2.0
#include "cohort/collective/backends/tcp/frame.h"

#include "cohort/core/crc32c.h"

namespace cohort::collective::tcp {
namespace {

constexpr std::uint32_t kFrameMagic = 0x43544346;
constexpr std::uint64_t kFarewellMagic = 0x4359424554434f43;
constexpr std::size_t kFarewellPrefixBytes = 24;  // magic, length, checksum
constexpr std::uint64_t kFarewellBytesMax = 1 << 20;

std::span<const std::byte> bytes_of(const iovec& piece) {
  return {static_cast<const std::byte*>(piece.iov_base), piece.iov_len};
}

std::uint32_t checksum_of_header(const FrameHeader& header) {
  return crc32c({reinterpret_cast<const std::byte*>(&header), offsetof(FrameHeader, checksum)});
}

}  // namespace

std::size_t bytes_of(const Pieces& pieces) {
  std::size_t bytes = 0;
  for (const iovec& piece : pieces) bytes += piece.iov_len;
  return bytes;
}

std::uint32_t checksum_of(const Pieces& pieces) {
  std::uint32_t checksum = 0;
  for (const iovec& piece : pieces) checksum = crc32c(bytes_of(piece), checksum);
  return checksum;
}

void seal(FrameHeader& header, const Pieces& payload, bool checks_payload) {
  header.magic = kFrameMagic;
  header.length = static_cast<std::uint32_t>(bytes_of(payload));
  header.payload_checksum = checks_payload ? checksum_of(payload) : 0;
  header.checksum = checksum_of_header(header);
}

const char* fault_of(const FrameHeader& header, int sender, std::uint64_t frame) {
  if (header.magic != kFrameMagic) return "bytes that are no frame";
  if (header.checksum != checksum_of_header(header)) return "a frame with a wrong checksum";
  if (header.sender != static_cast<std::uint32_t>(sender)) return "a frame of another member";
  if (header.frame != frame) return "a frame that is not the next one";
  return nullptr;
}

Bytes encoded(const Farewell& farewell) {
  ByteWriter body;
  body.varint(farewell.call);
  body.varint(farewell.culprits.size());
  for (const int rank : farewell.culprits) body.zigzag(rank);
  body.u8(static_cast<std::uint8_t>(farewell.code));
  body.text(farewell.why);
  ByteWriter message;
  message.u64(kFarewellMagic);
  message.u64(body.bytes().size());
  message.u64(crc32c(body.bytes()));
  Bytes bytes = message.take();
  bytes.insert(bytes.end(), body.bytes().begin(), body.bytes().end());
  return bytes;
}

std::optional<Farewell> decoded_farewell(std::span<const std::byte> bytes, int size) {
  if (bytes.size() < kFarewellPrefixBytes) return std::nullopt;
  ByteReader prefix(bytes.first(kFarewellPrefixBytes), "the end of a group");
  if (prefix.u64() != kFarewellMagic) prefix.fail("the message about the end of a group");
  const std::uint64_t length = prefix.u64();
  if (length > kFarewellBytesMax) prefix.fail("a short message");
  const std::uint64_t checksum = prefix.u64();
  if (bytes.size() < kFarewellPrefixBytes + length) return std::nullopt;
  const std::span<const std::byte> body = bytes.subspan(kFarewellPrefixBytes, length);
  ByteReader in(body, "the end of a group");
  if (crc32c(body) != checksum) in.fail("the checksum of its bytes");
  Farewell farewell{.call = in.varint()};
  for (std::size_t count = in.count(); count > 0; --count) {
    const std::int64_t rank = in.zigzag();
    if (rank < 0 || rank >= size) in.fail("the rank of a member");
    farewell.culprits.push_back(static_cast<int>(rank));
  }
  const std::uint8_t code = in.u8();
  if (code < 1 || code > 16) in.fail("the code of an error");
  farewell.code = static_cast<ErrorCode>(code);
  farewell.why = in.text();
  return farewell;
}

}  // namespace cohort::collective::tcp
