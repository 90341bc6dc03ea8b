// SPDX-License-Identifier: Apache-2.0
// A process whose address space is limited, in tests. Not for the sanitizers, which reserve memory
// of their own.
#pragma once

#include <sys/resource.h>
#include <unistd.h>

#include <cstddef>
#include <fstream>

namespace cohort::testing {

// While it exists, this process gets at most `more_bytes` more. Used only from one thread.
class LittleMemory {
 public:
  explicit LittleMemory(std::size_t more_bytes = std::size_t{16} << 20) {
    ::getrlimit(RLIMIT_AS, &before_);
    std::size_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    rlimit low = before_;
    low.rlim_cur = pages * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE)) + more_bytes;
    ::setrlimit(RLIMIT_AS, &low);
  }
  ~LittleMemory() { ::setrlimit(RLIMIT_AS, &before_); }
  LittleMemory(const LittleMemory&) = delete;
  LittleMemory& operator=(const LittleMemory&) = delete;

 private:
  rlimit before_{};
};

}  // namespace cohort::testing
