// SPDX-License-Identifier: Apache-2.0
#include "cohort/net/host_proof.h"

#include <ifaddrs.h>
#include <netinet/in.h>
#include <sys/stat.h>

#include <cstring>
#include <fstream>
#include <memory>
#include <optional>

#include "cohort/core/random.h"
#include "cohort/net/socket.h"

namespace cohort::net {
namespace {

std::string unknown_id() { return "?" + std::to_string(draw_number()); }

// Changes only if a thread moves to another namespace, which programs do not do while they train.
std::uint64_t hash_of_this_host() {
  static const std::uint64_t hash =
      mix_seed(mix_seed(0, std::string_view(boot_id())), std::string_view(namespace_id("net")));
  return hash;
}

}  // namespace

HostProof prove_host(int socket) {
  const auto local = SocketAddress::local(socket);
  const auto remote = SocketAddress::remote(socket);
  if (!local || !remote) return {};
  return {.host = is_this_host(remote->get()) ? hash_of_this_host() : 0,
          .local = address_hash(local->get()),
          .remote = address_hash(remote->get())};
}

bool are_on_one_host(const HostProof& one, const HostProof& other) {
  return one.host != 0 && one.host == other.host && one.local == other.remote &&
         one.remote == other.local;
}

std::string boot_id() {
  std::string id;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> id;
  return id.empty() ? unknown_id() : id;
}

std::string namespace_id(std::string_view name) {
  struct stat file {};
  if (::stat(("/proc/self/ns/" + std::string(name)).c_str(), &file) != 0) return unknown_id();
  return std::to_string(file.st_dev) + "." + std::to_string(file.st_ino);
}

bool is_this_host(const sockaddr* address) {
  const std::optional<in6_addr> number = ipv6_address(address);
  if (!number) return false;
  if (IN6_IS_ADDR_LOOPBACK(&*number)) return true;
  if (IN6_IS_ADDR_V4MAPPED(&*number) && number->s6_addr[12] == 127) return true;
  ifaddrs* all = nullptr;
  if (::getifaddrs(&all) != 0) return false;
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> kept(all, &freeifaddrs);
  for (const ifaddrs* one = all; one != nullptr; one = one->ifa_next) {
    const std::optional<in6_addr> local = ipv6_address(one->ifa_addr);
    if (local && std::memcmp(&*local, &*number, sizeof(in6_addr)) == 0) return true;
  }
  return false;
}

}  // namespace cohort::net
