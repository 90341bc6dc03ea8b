// SPDX-License-Identifier: Apache-2.0
// The addresses behind a host's name, by a deadline: getaddrinfo() has none, and waits as long as
// the name servers are silent.
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
  std::shared_ptr<const addrinfo> list;  // null: there are none, for this reason
  std::string problem;
};

// getaddrinfo(), or what a test puts in its place.
using GetAddresses =
    std::function<int(const char* host, const char* port, const addrinfo* hints, addrinfo** found)>;

// Nothing when the deadline came first. A number is read at once; a name is looked up by a thread,
// one for each name, which may outlive the call. resource_exhausted where the system gives no
// thread. Thread-safe.
std::optional<FoundAddresses> look_up(const HostPort& where, bool is_for_listening,
                                      Deadline deadline,
                                      const GetAddresses& get_addresses = &::getaddrinfo);
// connect_to(), with its lookups by `get_addresses`. The deadline is that of the lookup as well.
FileDescriptor connect_to(const PeerName& peer, Deadline deadline,
                          const GetAddresses& get_addresses);

}  // namespace cohort::rpc::internal
