// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace cohort::testing {

// The result of the lookup of a name that has these addresses, with one port.
class AddressesOfAName {
 public:
  AddressesOfAName(const std::vector<const char*>& hosts, const std::string& port)
      : sockets_(hosts.size()), list_(hosts.size()) {
    for (std::size_t i = 0; i < hosts.size(); ++i) {
      sockets_[i].sin_family = AF_INET;
      sockets_[i].sin_port = htons(static_cast<std::uint16_t>(std::stoi(port)));
      inet_pton(AF_INET, hosts[i], &sockets_[i].sin_addr);
      list_[i].ai_family = AF_INET;
      list_[i].ai_addr = reinterpret_cast<sockaddr*>(&sockets_[i]);
      list_[i].ai_addrlen = sizeof sockets_[i];
      if (i > 0) list_[i - 1].ai_next = &list_[i];
    }
  }
  AddressesOfAName(const AddressesOfAName&) = delete;
  AddressesOfAName& operator=(const AddressesOfAName&) = delete;
  const addrinfo& list() const { return list_[0]; }

 private:
  std::vector<sockaddr_in> sockets_;
  std::vector<addrinfo> list_;
};

}  // namespace cohort::testing
