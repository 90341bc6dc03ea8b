// SPDX-License-Identifier: Apache-2.0
// TCP sockets: addresses, listening, connecting. All are non-blocking and closed on exec.
#pragma once

#include <netdb.h>

#include <functional>
#include <string>
#include <vector>

#include "cohort/core/clock.h"
#include "cohort/core/file_descriptor.h"
#include "cohort/rpc/frames/channel_end.h"

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
// Parses "127.0.0.1:4711", "[::1]:4711", "host:4711"; throws invalid_argument for anything else.
HostPort parse_address(const std::string& address);

// One found address as numbers.
HostPort numeric_address(const addrinfo& address);

// Listens on exactly this address, and writes the chosen port into `address`. Throws already_exists
// if the port is taken, invalid_argument if the address is not this machine's, and the errors of
// look_up_own().
FileDescriptor listen_on(std::string& address, const std::function<bool()>& should_stop = {});
// The same for every address of the name that this machine has, with one port.
std::vector<FileDescriptor> listen_on_all(std::string& address,
                                          const std::function<bool()>& should_stop = {});
// Throws what listen_on() would throw, without keeping the address; already_exists also if another
// address of the same name is taken.
void check_can_listen(const std::string& address);
// The same for addresses that were found before; `where` is for messages.
void check_all_free(const addrinfo& addresses, const HostPort& where);

// Throws unavailable and peer_lost, or deadline_exceeded; both name the peer.
FileDescriptor connect_to(const PeerName& peer, Deadline deadline);
// Disables delays for small frames, and makes the loss of a host noticed within a minute.
void tune(int fd);
// The other end's address: "127.0.0.1:51344".
std::string remote_address(int fd);
// Whether the numeric address is loopback or one of this host's own. Asks the system.
bool is_this_host(const std::string& address);

// The timeout for poll(), rounded up; -1 if infinite.
int poll_milliseconds(Deadline deadline);

}  // namespace cohort::rpc::internal
