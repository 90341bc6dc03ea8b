// SPDX-License-Identifier: Apache-2.0
#include "cohort/collective/backends/tcp/frame.h"

#include "cohort/core/crc32c.h"
#include "cohort/core/fields.h"

namespace cohort::collective::tcp {

template <class Codec>
void fields(Codec& codec, Farewell& farewell) {
  codec(farewell.call, farewell.culprits,
        Choice(farewell.code, ErrorCode::unauthenticated, "the code of an error",
               ErrorCode::cancelled),
        farewell.why);
}

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
  const Bytes body = encode_fields(farewell);
  ByteWriter message;
  message.u64(kFarewellMagic);
  message.u64(body.size());
  message.u64(crc32c(body));
  Bytes bytes = message.take();
  bytes.insert(bytes.end(), body.begin(), body.end());
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
  FieldReader in(body, "the end of a group");
  if (crc32c(body) != checksum) in.fail("the checksum of its bytes");
  Farewell farewell;
  in(farewell);
  for (const int rank : farewell.culprits) {
    if (rank < 0 || rank >= size) in.fail("the rank of a member");
  }
  return farewell;
}

}  // namespace cohort::collective::tcp
