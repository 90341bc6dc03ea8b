// SPDX-License-Identifier: Apache-2.0
// A ControlClient whose names are resolved by a test.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "cohort/net/name_lookup.h"
#include "cohort/rpc/control.h"

namespace cohort::rpc::internal {

// rpc::control_client() that resolves with `get_addresses`.
std::unique_ptr<ControlClient> control_client(const std::string& address, const std::string& task,
                                              std::uint64_t coordinator_incarnation,
                                              const net::GetAddresses& get_addresses);

}  // namespace cohort::rpc::internal
