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
#include "cohort/core/mutex.h"
#include "cohort/net/host_port.h"

namespace cohort::net {

struct FoundAddresses {
  std::shared_ptr<const addrinfo> list;  // null if there is none, because of `problem`
  std::string problem;
  // No name server answered (EAI_AGAIN): the same question may have an answer in a moment.
  bool is_temporary = false;
};

// getaddrinfo(), or its replacement in a test.
using GetAddresses =
    std::function<int(const char* host, const char* port, const addrinfo* hints, addrinfo** found)>;

// One question to the resolver, which several callers may share. Thread-safe.
class Lookup {
 public:
  void set(FoundAddresses found);
  // Returns nullopt if the deadline passes, or if `is_given_up` returns true; it is called at the
  // start and after every wake().
  std::optional<FoundAddresses> wait(Deadline deadline,
                                     const std::function<bool()>& is_given_up = {});
  void wake() noexcept;
  // Without waiting; nullopt before the end.
  std::optional<FoundAddresses> found() const;

 private:
  mutable Mutex mutex_;
  Condition changed_;
  std::optional<FoundAddresses> found_ COHORT_GUARDED_BY(mutex_);
};

// Does not wait. A numeric address is parsed at once; a name is resolved by a thread, one per name,
// which may outlive the call. Throws resource_exhausted if the system cannot start a thread.
// Thread-safe.
std::shared_ptr<Lookup> start_look_up(const HostPort& where, bool is_for_listening,
                                      const GetAddresses& get_addresses = &::getaddrinfo);
// The same, but waits. Returns nullopt if the deadline passes first.
std::optional<FoundAddresses> look_up(const HostPort& where, bool is_for_listening,
                                      Deadline deadline,
                                      const GetAddresses& get_addresses = &::getaddrinfo);
inline constexpr const char* kNameRemedy =
    "see whether name resolution (DNS) works on this host, or write the address as a number";
inline constexpr const char* kOwnAddressRemedy =
    "; start the task on that host, or correct its index or its address in TF_CONFIG";

// The addresses at which a task listens, by the name of its own host. Throws invalid_argument for a
// name that has none, deadline_exceeded, or unavailable if no name server answers now: only then
// may the same call succeed soon. Throws cancelled if `should_stop` returns true first; it is
// called ten times a second, since a signal handler cannot wake the caller.
std::shared_ptr<const addrinfo> look_up_own(const HostPort& where, Deadline deadline,
                                            const GetAddresses& get_addresses = &::getaddrinfo,
                                            const std::function<bool()>& should_stop = {});

}  // namespace cohort::net
