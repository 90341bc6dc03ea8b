// SPDX-License-Identifier: Apache-2.0
// Resolves a host name with a deadline: getaddrinfo() has none, and waits as long as the name
// servers do not answer.
#pragma once

#include <netdb.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "cohort/core/clock.h"
#include "cohort/rpc/internal/socket.h"

namespace cohort::rpc::internal {

struct FoundAddresses {
  std::shared_ptr<const addrinfo> list;  // null: none, because of `problem`
  std::string problem;
};

// getaddrinfo(), or its replacement in a test.
using GetAddresses =
    std::function<int(const char* host, const char* port, const addrinfo* hints, addrinfo** found)>;

// Unset if the deadline passes first. A numeric address is parsed at once; a name is resolved by a
// thread, one per name, which may outlive the call. resource_exhausted if the system cannot start a
// thread. Thread-safe.
std::optional<FoundAddresses> look_up(const HostPort& where, bool is_for_listening,
                                      Deadline deadline,
                                      const GetAddresses& get_addresses = &::getaddrinfo);
// connect_to() that resolves with `get_addresses`. The deadline includes the lookup.
FileDescriptor connect_to(const PeerName& peer, Deadline deadline,
                          const GetAddresses& get_addresses);

}  // namespace cohort::rpc::internal
