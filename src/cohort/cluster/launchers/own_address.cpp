// SPDX-License-Identifier: Apache-2.0
#include "cohort/cluster/launchers/own_address.h"

#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <memory>
#include <optional>
#include <vector>

#include "cohort/cluster/resolvers/resolving.h"
#include "cohort/core/error.h"
#include "cohort/core/file_descriptor.h"
#include "cohort/core/mutex.h"
#include "cohort/core/system_error.h"
#include "cohort/net/host_port.h"
#include "cohort/net/name_lookup.h"
#include "cohort/net/socket.h"

namespace cohort::cluster {
namespace {

// An address of a network for documentation: a route to it is the way out of this host.
constexpr const char* kOutside = "192.0.2.1";
constexpr const char* kAnyPort = "9";  // nothing is sent

std::shared_ptr<const addrinfo> found_addresses(const net::HostPort& where, bool is_for_listening,
                                                Deadline deadline) {
  const std::optional<net::FoundAddresses> found = net::look_up(where, is_for_listening, deadline);
  COHORT_CHECK(found && found->list != nullptr,
               !found || found->is_temporary ? ErrorCode::unavailable : ErrorCode::invalid_argument,
               "[cluster.address] expected a host that can be found, got '", where.host,
               "': ", found ? found->problem : "no name server answered in time", "; ",
               net::kNameRemedy);
  return found->list;
}

// The address from which a message to `to` would leave; empty without a route.
std::string source_toward(const addrinfo& to) {
  const FileDescriptor socket(::socket(to.ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!socket.is_open() || ::connect(socket.get(), to.ai_addr, to.ai_addrlen) != 0) return "";
  sockaddr_storage storage{};
  addrinfo own = to;
  own.ai_addr = reinterpret_cast<sockaddr*>(&storage);
  own.ai_addrlen = sizeof storage;
  if (::getsockname(socket.get(), own.ai_addr, &own.ai_addrlen) != 0) return "";
  return net::numeric_address(own).host;
}

// Never closed: the address belongs to this process.
void keep_until_the_end(FileDescriptor socket) {
  static Mutex mutex;
  static auto& kept = *new std::vector<FileDescriptor>;
  const Lock lock(mutex);
  kept.push_back(std::move(socket));
}

}  // namespace

std::string own_host(const std::string& host, const std::string& toward, Deadline deadline) {
  if (!host.empty()) return host;
  const std::string of_environment = internal::environment_text("COHORT_OWN_HOST").value_or("");
  if (!of_environment.empty()) return of_environment;
  const net::HostPort where{toward.empty() ? kOutside : toward, kAnyPort};
  std::string source = source_toward(*found_addresses(where, false, deadline));
  if (!source.empty()) return source;
  return "127.0.0.1";  // this host has no network; the others' addresses show whether it needs one
}

std::string reserve_address(const std::string& host, Deadline deadline) {
  const auto own = found_addresses({host, "0"}, true, deadline);
  FileDescriptor socket(::socket(own->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = 1;
  if (socket.is_open()) ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  const bool is_bound =
      socket.is_open() && ::bind(socket.get(), own->ai_addr, own->ai_addrlen) == 0;
  COHORT_CHECK(is_bound, code_of_errno(errno, ErrorCode::invalid_argument),
               "[cluster.address] expected a free port of this host at '", host,
               "', got: ", text_of_errno(errno),
               "; set COHORT_OWN_HOST, or LauncherOptions::host, to a name or number of this host");
  sockaddr_storage storage{};
  addrinfo bound = *own;
  bound.ai_addr = reinterpret_cast<sockaddr*>(&storage);
  bound.ai_addrlen = sizeof storage;
  ::getsockname(socket.get(), bound.ai_addr, &bound.ai_addrlen);
  keep_until_the_end(std::move(socket));
  return net::HostPort{host, net::numeric_address(bound).port}.to_string();
}

}  // namespace cohort::cluster
