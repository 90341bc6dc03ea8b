// SPDX-License-Identifier: Apache-2.0
// Whether there is address space for what the libraries of this process are about to take, where it
// is limited (ulimit -v). Without it, gRPC ends the process, and OpenBLAS waits for ever.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "cohort/core/export.h"

namespace cohort {

// For the end of a message.
inline constexpr std::string_view kAddressRemedy =
    "give this process more address space (ulimit -v), or run it without that limit";

// Whether the address space is limited.
COHORT_API bool has_address_limit() noexcept;

// Whether the system would give `bytes` more of it now; true where it is not limited. Thread-safe.
COHORT_API bool has_address_room(std::size_t bytes) noexcept;

// Throws resource_exhausted if it would not; `purpose` says in the message what for, "for gRPC".
// Thread-safe.
COHORT_API void check_address_room(std::size_t bytes, std::string_view purpose);

// All memory of this host in bytes, used or free. The system is asked once, since a call takes
// about a microsecond. Thread-safe.
COHORT_API std::uint64_t host_memory_bytes();

// Where the address space is limited, threads share malloc's memory from now on: glibc would
// reserve 64 MiB of it for each. Thread-safe.
COHORT_API void save_address_space() noexcept;

}  // namespace cohort
