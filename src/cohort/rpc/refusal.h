// SPDX-License-Identifier: Apache-2.0
// Whether the host of a task refuses connections.
#pragma once

#include <string>

#include "cohort/core/clock.h"
#include "cohort/core/export.h"

namespace cohort::rpc {

// A host that is up refuses a connection within one round trip, so a check need not wait longer.
inline constexpr auto kRefusalTimeout = std::chrono::milliseconds(500);

// Whether the host of "host:port" refuses connections there (ECONNREFUSED): the host is up, but
// nobody listens. Also false if the deadline passes first, or if this process lacks descriptors.
// Makes a connection, which a listening server counts as a stranger, so call it only after a
// failure.
COHORT_API bool is_refusing(const std::string& address, Deadline deadline) noexcept;

}  // namespace cohort::rpc
