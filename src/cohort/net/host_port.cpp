// SPDX-License-Identifier: Apache-2.0
#include "cohort/net/host_port.h"

#include <cstddef>

#include "cohort/core/error.h"

namespace cohort::net {

std::string HostPort::to_string() const {
  const bool is_v6 = host.find(':') != std::string::npos;
  return (is_v6 ? "[" + host + "]" : host) + ":" + port;
}

HostPort parse_address(const std::string& address) {
  const std::size_t colon = address.rfind(':');
  HostPort parsed;
  if (colon != std::string::npos) {
    parsed = {address.substr(0, colon), address.substr(colon + 1)};
    const bool has_brackets =
        parsed.host.size() > 2 && parsed.host.front() == '[' && parsed.host.back() == ']';
    if (has_brackets) parsed.host = parsed.host.substr(1, parsed.host.size() - 2);
    if (!has_brackets && parsed.host.find(':') != std::string::npos) parsed.host.clear();
  }
  const bool is_number = !parsed.port.empty() && parsed.port.size() <= 5 &&
                         parsed.port.find_first_not_of("0123456789") == std::string::npos;
  COHORT_CHECK(!parsed.host.empty() && is_number && std::stoi(parsed.port) <= 65535,
               ErrorCode::invalid_argument, "[net.address] expected \"host:port\", got \"", address,
               "\"");
  return parsed;
}

HostPort parse_given_address(const std::string& address) {
  HostPort parsed = parse_address(address);
  COHORT_CHECK(std::stoi(parsed.port) != 0, ErrorCode::invalid_argument,
               "[net.address] expected \"host:port\" with a port of 1 to 65535, got \"", address,
               "\"");
  return parsed;
}

}  // namespace cohort::net
