// SPDX-License-Identifier: Apache-2.0
#include "cohort/cluster/address.h"

#include <algorithm>
#include <cctype>
#include <string_view>

namespace cohort::cluster {
namespace {

constexpr std::string_view kLoopback = "127.0.0.1";
constexpr std::string_view kLoopbackV6 = "[::1]";
constexpr std::string_view kLoopbackName = "localhost";

struct NormalAddress {
  std::string host;  // in lower case
  std::string rest;  // ":" and the port, without leading zeros; empty where there is none
};

NormalAddress normal(const std::string& address) {
  const std::size_t colon = std::min(address.rfind(':'), address.size());
  NormalAddress parts{address.substr(0, colon), address.substr(colon)};
  std::transform(parts.host.begin(), parts.host.end(), parts.host.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  while (parts.rest.size() > 2 && parts.rest[1] == '0') parts.rest.erase(1, 1);
  return parts;
}

}  // namespace

std::string normalized_address(const std::string& address) {
  const NormalAddress parts = normal(address);
  const bool is_loopback = parts.host == kLoopbackName || parts.host == kLoopbackV6;
  return (is_loopback ? std::string(kLoopback) : parts.host) + parts.rest;
}

std::vector<std::string> listeners_of(const std::string& address) {
  const NormalAddress parts = normal(address);
  if (parts.host != kLoopbackName) return {parts.host + parts.rest};
  return {std::string(kLoopback) + parts.rest, std::string(kLoopbackV6) + parts.rest};
}

bool is_of_loopback(const std::string& address) {
  const std::string host = normal(address).host;
  return host == kLoopbackName || host == kLoopbackV6 || host.starts_with("127.");
}

}  // namespace cohort::cluster
