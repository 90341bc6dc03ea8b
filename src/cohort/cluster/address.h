// SPDX-License-Identifier: Apache-2.0
// Whether two addresses of tasks, "host:port", are the same.
#pragma once

#include <string>
#include <vector>

#include "cohort/core/export.h"

namespace cohort::cluster {

// The address with its host in lower case, its port without leading zeros, and "127.0.0.1" for the
// loopback's other names, localhost and [::1]. Tasks that write one cluster differently agree on
// these.
COHORT_API std::string normalized_address(const std::string& address);

// The sockets that a server of this address listens on: for localhost both 127.0.0.1 and [::1],
// otherwise one. Tasks with a listener in common cannot both be served.
COHORT_API std::vector<std::string> listeners_of(const std::string& address);

// Whether only its own host reaches the address: localhost, 127.0.0.1 and its like, [::1].
COHORT_API bool is_of_loopback(const std::string& address);

}  // namespace cohort::cluster
