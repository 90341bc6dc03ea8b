// SPDX-License-Identifier: Apache-2.0
// TCP sockets: addresses, listening, connecting. All are non-blocking and closed on exec.
#pragma once

#include <netdb.h>

#include <functional>
#include <string>
#include <vector>

#include "cohort/core/clock.h"
#include "cohort/core/detail/file_descriptor.h"
#include "cohort/rpc/internal/channel_end.h"

namespace cohort::rpc::internal {

// Wakes a thread that polls. Thread-safe.
class Waker {
 public:
  Waker();
  int fd() const { return event_.get(); }
  void wake() noexcept;
  void drain() noexcept;

 private:
  FileDescriptor event_;
};

struct HostPort {
  std::string host;  // without brackets
  std::string port;

  std::string to_string() const;
};
// "127.0.0.1:4711", "[::1]:4711", "host:4711"; invalid_argument for anything else.
HostPort parse_address(const std::string& address);

// One found address as numbers.
HostPort numeric_address(const addrinfo& address);

// Listens on exactly this address; puts the chosen port into `address`. already_exists when the
// port is taken, invalid_argument when the address is not this machine's, and what look_up_own()
// throws.
FileDescriptor listen_on(std::string& address, const std::function<bool()>& should_stop = {});
// The same of every address of the name that this machine has, with one port.
std::vector<FileDescriptor> listen_on_all(std::string& address,
                                          const std::function<bool()>& should_stop = {});
// Throws what listen_on() would, without keeping the address; already_exists also when another
// address of the same name is taken.
void check_can_listen(const std::string& address);
// The same of addresses that are found already, for this text.
void check_all_free(const addrinfo& addresses, const HostPort& where);

// unavailable and peer_lost, or deadline_exceeded; both name the peer.
FileDescriptor connect_to(const PeerName& peer, Deadline deadline);
// No delay for small frames; a vanished host is noticed within a minute.
void tune(int fd);
// "127.0.0.1:51344", the other end's.
std::string remote_address(int fd);
// Whether such an address, with its number, is loopback or one of this host's own. Asks the system.
bool is_this_host(const std::string& address);

// For poll(): -1 when infinite, rounded up.
int poll_milliseconds(Deadline deadline);

}  // namespace cohort::rpc::internal
