// SPDX-License-Identifier: Apache-2.0
#include "cohort/rpc/sockets/first_bytes.h"

#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <string_view>

#include "cohort/rpc/frames/frame_codec.h"

namespace cohort::rpc::internal {
namespace {

constexpr std::string_view kHttp2Preface = "PRI * HTTP/2.0";
constexpr std::string_view kHttp1Preface = "GET ";
constexpr std::string_view kFramePreface = "COHF";
// The system keeps at least this many bytes that nobody reads. A hello is much smaller.
constexpr std::size_t kKeptBytes = 16 << 10;

bool begins_as(std::string_view bytes, std::string_view preface) {
  const std::size_t count = std::min(bytes.size(), preface.size());
  return bytes.substr(0, count) == preface.substr(0, count);
}

}  // namespace

FirstBytes first_bytes_of(int socket) {
  std::array<char, kHttp2Preface.size()> first{};
  const ssize_t count = recv(socket, first.data(), first.size(), MSG_PEEK | MSG_DONTWAIT);
  if (count == 0) return FirstBytes::gone;
  if (count < 0) return errno == EAGAIN || errno == EINTR ? FirstBytes::unknown : FirstBytes::gone;
  const std::string_view bytes(first.data(), static_cast<std::size_t>(count));
  if (begins_as(bytes, kFramePreface))
    return bytes.size() < kFramePreface.size() ? FirstBytes::unknown : FirstBytes::frames;
  if (begins_as(bytes, kHttp1Preface))
    return bytes.size() < kHttp1Preface.size() ? FirstBytes::unknown : FirstBytes::http1;
  if (begins_as(bytes, kHttp2Preface))
    return bytes.size() < kHttp2Preface.size() ? FirstBytes::unknown : FirstBytes::http2;
  return FirstBytes::neither;
}

bool has_first_frame(int socket, std::size_t frame_bytes_max) {
  std::array<std::byte, kHeaderBytes> first{};
  const ssize_t count = recv(socket, first.data(), first.size(), MSG_PEEK | MSG_DONTWAIT);
  if (count < static_cast<ssize_t>(first.size())) return false;
  std::size_t size = 0;
  try {
    const FrameHeader header = decode_header(first, frame_bytes_max, 0);
    size = header.head_bytes() + header.payload_bytes +
           (header.has_payload_sum() ? kPayloadSumBytes : 0);
  } catch (const Error&) {
    return true;
  }
  int arrived = 0;
  return size > kKeptBytes || ioctl(socket, FIONREAD, &arrived) != 0 ||
         static_cast<std::size_t>(arrived) >= size;
}

}  // namespace cohort::rpc::internal
