// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace cohort::net {

struct HostPort {
  std::string host;  // without brackets
  std::string port;

  std::string to_string() const;
};

// Parses "127.0.0.1:4711", "[::1]:4711", "host:4711"; throws invalid_argument for anything else.
// Port 0 stands for one that the system chooses.
HostPort parse_address(const std::string& address);
// The same, but port 0 is refused, too.
HostPort parse_given_address(const std::string& address);

}  // namespace cohort::net
