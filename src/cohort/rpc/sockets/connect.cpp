// SPDX-License-Identifier: Apache-2.0
#include "cohort/rpc/sockets/connect.h"

#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <string>

#include "cohort/core/system_error.h"
#include "cohort/net/socket.h"
#include "cohort/net/waker.h"
#include "cohort/rpc/connection.h"

namespace cohort::rpc::internal {
namespace {

// Waits for a started connection. Returns 0 or its errno; nullopt after the deadline.
std::optional<int> wait_connected(int fd, Deadline deadline) {
  pollfd entry{fd, POLLOUT, 0};
  int count = 0;
  do {
    count = ::poll(&entry, 1, net::poll_milliseconds(deadline));
  } while (count < 0 ? errno == EINTR : count == 0 && !deadline.has_expired());
  if (count == 0) return std::nullopt;
  return count < 0 ? errno : net::connected_error(fd);
}

std::optional<int> connect_one(const addrinfo& address, FileDescriptor& socket, Deadline deadline) {
  const int error = net::start_connecting(address, socket);
  COHORT_CHECK(socket.is_open(), code_of_errno(error, ErrorCode::internal),
               "[rpc.connect] expected a socket, got: ", text_of_errno(error));
  return error == EINPROGRESS ? wait_connected(socket.get(), deadline) : error;
}

}  // namespace

FileDescriptor connect_to(const PeerName& peer, Deadline deadline,
                          const net::GetAddresses& get_addresses) {
  const auto found = net::look_up(net::parse_address(peer.address), false, deadline, get_addresses);
  if (!found || !found->list) throw unresolved_error(peer, found);
  return connect_to(peer, *found->list, deadline);
}

FileDescriptor connect_to(const PeerName& peer, const addrinfo& addresses, Deadline deadline) {
  std::string problem;
  int left = 0;
  for (const addrinfo* one = &addresses; one != nullptr; one = one->ai_next) ++left;
  for (const addrinfo* one = &addresses; one != nullptr; one = one->ai_next, --left) {
    FileDescriptor socket;
    // An address that does not answer must leave time for the others.
    const Deadline share = left == 1 ? deadline : Deadline::after(deadline.remaining() / left);
    const std::optional<int> error = connect_one(*one, socket, share);
    if (!error && left == 1) throw expired_error(peer);
    if (!error) continue;
    if (*error == 0) return socket;
    const char* meaning = *error == ECONNREFUSED ? ", nobody listens there" : "";
    problem = text_of_errno(*error) + meaning;
  }
  throw refused_error(peer, problem);
}

Error unresolved_error(const PeerName& peer, const std::optional<net::FoundAddresses>& found) {
  const std::string expected = "[rpc.connect] expected the address of host '" +
                               net::parse_address(peer.address).host + "' for " + peer.to_string();
  if (!found) {
    return Error(ErrorCode::deadline_exceeded,
                 expected + " before the deadline, got none; " + net::kNameRemedy)
        .at(peer.task);
  }
  if (const int lack = lacks_descriptors(); lack != 0)
    return Error(ErrorCode::resource_exhausted, expected + ", got: " + text_of_errno(lack));
  const std::string remedy =
      found->is_temporary ? net::kNameRemedy : "correct the name, or its entry in DNS";
  return Error(ErrorCode::unavailable, expected + ", got: " + found->problem + "; " + remedy,
               ErrorCause::peer_lost)
      .at(peer.task);
}

}  // namespace cohort::rpc::internal

namespace cohort::rpc {

bool is_refusing(const std::string& address, Deadline deadline) noexcept {
  try {
    const auto found = net::look_up(net::parse_address(address), false, deadline);
    if (!found || !found->list) return false;
    for (const addrinfo* one = found->list.get(); one != nullptr; one = one->ai_next) {
      FileDescriptor socket;
      if (internal::connect_one(*one, socket, deadline) != ECONNREFUSED) return false;
    }
    return true;
  } catch (...) {  // because of too few descriptors or threads
    return false;
  }
}

}  // namespace cohort::rpc
