// SPDX-License-Identifier: Apache-2.0
// Whether the two ends of a connection are on one host, with nothing but its kernel in between.
//
//   net::HostProof mine = net::prove_host(socket);  // each end sends its own to the other
//   if (!net::are_on_one_host(mine, theirs)) …      // the bytes may be damaged on their way
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace cohort::net {

// How one end of a connection sees its host and both addresses. A tunnel, a proxy or a sidecar has
// a connection of its own with each end, so the addresses differ, also if all of them are on this
// host. A value type.
struct HostProof {
  std::uint64_t host = 0;    // a hash of boot_id() and the network namespace; 0: not known
  std::uint64_t local = 0;   // address_hash() of this end's address
  std::uint64_t remote = 0;  // of the other end's
};
// The proof of a connected socket. The host is 0 if the other end's address is not one of this
// host.
HostProof prove_host(int socket);
// Any difference means that it is not proven.
bool are_on_one_host(const HostProof& one, const HostProof& other);

// Equal for all processes that run on one kernel, until it restarts; different for each call if the
// system does not say. Copies of a virtual machine may have the same.
std::string boot_id();
// "net", "pid", "user", …: the namespace of this process, as boot_id().
std::string namespace_id(std::string_view name);
// Whether the address is loopback or one of this host's own. Asks the system.
bool is_this_host(const sockaddr* address);

}  // namespace cohort::net
