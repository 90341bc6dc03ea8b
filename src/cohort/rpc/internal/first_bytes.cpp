// SPDX-License-Identifier: Apache-2.0
#include "cohort/rpc/internal/first_bytes.h"

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <string_view>

namespace cohort::rpc::internal {
namespace {

constexpr std::string_view kHttp2Preface = "PRI * HTTP/2.0";
constexpr std::string_view kFramePreface = "COHF";

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
  if (begins_as(bytes, kHttp2Preface))
    return bytes.size() < kHttp2Preface.size() ? FirstBytes::unknown : FirstBytes::http2;
  return FirstBytes::neither;
}

}  // namespace cohort::rpc::internal
