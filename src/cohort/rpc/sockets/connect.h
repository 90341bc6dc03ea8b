// SPDX-License-Identifier: Apache-2.0
// Connections to tasks, whose errors name the task.
#pragma once

#include <netdb.h>

#include <optional>

#include "cohort/core/clock.h"
#include "cohort/core/error.h"
#include "cohort/core/file_descriptor.h"
#include "cohort/net/name_lookup.h"
#include "cohort/rpc/frames/channel_end.h"

namespace cohort::rpc::internal {

// Throws unavailable and peer_lost, or deadline_exceeded; both name the peer. The deadline includes
// the lookup of its name.
FileDescriptor connect_to(const PeerName& peer, Deadline deadline,
                          const net::GetAddresses& get_addresses = &::getaddrinfo);
// The same, with addresses that were found before.
FileDescriptor connect_to(const PeerName& peer, const addrinfo& addresses, Deadline deadline);

// The error if a lookup for this peer found no addresses: deadline_exceeded if `found` is nullopt,
// otherwise unavailable and peer_lost; resource_exhausted, without the peer as origin, if this
// process has too few descriptors.
Error unresolved_error(const PeerName& peer, const std::optional<net::FoundAddresses>& found);

}  // namespace cohort::rpc::internal
