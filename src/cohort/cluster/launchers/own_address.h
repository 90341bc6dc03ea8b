// SPDX-License-Identifier: Apache-2.0
// Where this process will listen, chosen before it does.
#pragma once

#include <cstdint>
#include <string>

#include "cohort/core/clock.h"

namespace cohort::cluster {

// How this host is called by others: `host` if it is not empty, else the variable COHORT_OWN_HOST,
// else the number of the interface that leads to `toward` (127.0.0.1 if that is this host's
// loopback), or without `toward` to the outside. Throws the errors of net::look_up().
std::string own_host(const std::string& host, const std::string& toward, Deadline deadline);

// Binds a free port of this host until the process ends, so that no other program gets it; a server
// of this process that sets SO_REUSEADDR, as Cohort's do, may listen there. Returns "host:port".
// Throws invalid_argument if `host` is not this host.
std::string reserve_address(const std::string& host, Deadline deadline);

}  // namespace cohort::cluster
