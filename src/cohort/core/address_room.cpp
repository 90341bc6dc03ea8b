// SPDX-License-Identifier: Apache-2.0
#include "cohort/core/address_room.h"

#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>

#include "cohort/core/error.h"

#ifdef __GLIBC__
#include <malloc.h>
#endif

namespace cohort {

bool has_address_limit() noexcept {
  rlimit limit{};
  return ::getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
}

bool has_address_room(std::size_t bytes) noexcept {
  if (bytes == 0 || !has_address_limit()) return true;
  constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  void* const place = ::mmap(nullptr, bytes, PROT_NONE, kFlags, -1, 0);
  if (place == MAP_FAILED) return false;
  ::munmap(place, bytes);
  return true;
}

void check_address_room(std::size_t bytes, std::string_view purpose) {
  COHORT_CHECK(has_address_room(bytes), ErrorCode::resource_exhausted,
               "[core.memory] expected room for ", (bytes + (1 << 20) - 1) >> 20, " MiB more ",
               purpose, ", got none; ", kAddressRemedy);
}

void save_address_space() noexcept {
#ifdef __GLIBC__
  if (has_address_limit()) ::mallopt(M_ARENA_MAX, 1);
#endif
}

std::uint64_t host_memory_bytes() {
  static const auto bytes = static_cast<std::uint64_t>(std::max(0L, ::sysconf(_SC_PHYS_PAGES))) *
                            static_cast<std::uint64_t>(std::max(0L, ::sysconf(_SC_PAGESIZE)));
  return bytes;
}

}  // namespace cohort
