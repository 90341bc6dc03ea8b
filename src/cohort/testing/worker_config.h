// SPDX-License-Identifier: Apache-2.0
// The configuration that starts workers of one job on this host: their TF_CONFIG, and the option
// that names the backend of their group.
#pragma once

#include <string>
#include <vector>

#include "cohort/collective/group.h"

namespace cohort::testing {

// The value of TF_CONFIG of one of the workers that have these addresses.
inline std::string tf_config_of(const std::vector<std::string>& addresses, int worker) {
  std::string list;
  for (const std::string& address : addresses)
    list += (list.empty() ? "\"" : ", \"") + address + "\"";
  return R"({"cluster": {"worker": [)" + list + R"(]}, "task": {"type": "worker", "index": )" +
         std::to_string(worker) + "}}";
}

// The addresses of ports of 127.0.0.1, such as rpc::ReservedPort.
template <class Ports>
std::vector<std::string> loopback_addresses(const Ports& ports) {
  std::vector<std::string> addresses;
  for (const auto& port : ports) addresses.push_back("127.0.0.1:" + std::to_string(port.number()));
  return addresses;
}

inline GroupBackend backend_of(const std::string& name) {
  if (name == "shared_memory") return GroupBackend::shared_memory;
  if (name == "mpi") return GroupBackend::mpi;
  return name == "tcp" ? GroupBackend::tcp : GroupBackend::automatic;
}

}  // namespace cohort::testing
