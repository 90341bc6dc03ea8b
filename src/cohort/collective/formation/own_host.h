// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "cohort/collective/formation/message.h"

namespace cohort::collective::formation {

// Equal for two processes if they run on one host, by one user and in the same namespaces, so that
// they can open each other's files in /proc. Different for each process if the system does not say.
std::string own_host();
// Whether it was a process of this host and has ended. False if it is not known.
bool has_ended(const Place& place);
std::uint64_t host_hash(std::string_view host);

}  // namespace cohort::collective::formation
