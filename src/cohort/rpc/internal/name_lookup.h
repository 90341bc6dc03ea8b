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
#include "cohort/core/detail/mutex.h"
#include "cohort/core/error.h"
#include "cohort/rpc/internal/socket.h"

namespace cohort::rpc::internal {

struct FoundAddresses {
  std::shared_ptr<const addrinfo> list;  // null: none, because of `problem`
  std::string problem;
  // No name server answered (EAI_AGAIN): the same question may have an answer in a moment.
  bool is_temporary = false;
};

// getaddrinfo(), or its replacement in a test.
using GetAddresses =
    std::function<int(const char* host, const char* port, const addrinfo* hints, addrinfo** found)>;

// One question to the resolver, perhaps of several callers. Thread-safe.
class Lookup {
 public:
  void set(FoundAddresses found);
  // Unset if the deadline passes first, or if `is_given_up` is true, which it asks at first and
  // after every wake().
  std::optional<FoundAddresses> wait(Deadline deadline,
                                     const std::function<bool()>& is_given_up = {});
  void wake() noexcept;

 private:
  Mutex mutex_;
  Condition changed_;
  std::optional<FoundAddresses> found_ COHORT_GUARDED_BY(mutex_);
};

// Does not wait. A numeric address is parsed at once; a name is resolved by a thread, one per name,
// which may outlive the call. resource_exhausted if the system cannot start a thread. Thread-safe.
std::shared_ptr<Lookup> start_look_up(const HostPort& where, bool is_for_listening,
                                      const GetAddresses& get_addresses = &::getaddrinfo);
// The same, and waits. Unset if the deadline passes first.
std::optional<FoundAddresses> look_up(const HostPort& where, bool is_for_listening,
                                      Deadline deadline,
                                      const GetAddresses& get_addresses = &::getaddrinfo);
// The addresses that a task listens on, by its own host's name. Throws invalid_argument for a name
// that has none, deadline_exceeded, or unavailable where no name server answers now: only then may
// the same call succeed in a moment. Throws cancelled if `should_stop` becomes true first; it is
// asked ten times a second, since a signal handler cannot wake the caller.
std::shared_ptr<const addrinfo> look_up_own(const HostPort& where, Deadline deadline,
                                            const GetAddresses& get_addresses = &::getaddrinfo,
                                            const std::function<bool()>& should_stop = {});
// Why a lookup for this peer found no addresses: deadline_exceeded for nothing, otherwise
// unavailable and peer_lost; resource_exhausted, without the peer as origin, if this process lacks
// descriptors.
Error unresolved_error(const PeerName& peer, const std::optional<FoundAddresses>& found);
// connect_to() that resolves with `get_addresses`. The deadline includes the lookup.
FileDescriptor connect_to(const PeerName& peer, Deadline deadline,
                          const GetAddresses& get_addresses);
// The same with addresses that are found already.
FileDescriptor connect_to(const PeerName& peer, const addrinfo& addresses, Deadline deadline);

}  // namespace cohort::rpc::internal
