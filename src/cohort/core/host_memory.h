// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace cohort {

// All memory of this host in bytes, used or free. The system is asked once, since a call takes
// about a microsecond. Thread-safe.
std::uint64_t host_memory_bytes();

}  // namespace cohort
