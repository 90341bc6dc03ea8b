// SPDX-License-Identifier: Apache-2.0
// Which BLAS library LibTorch multiplies matrices with. The reference BLAS is about twenty times
// slower than OpenBLAS, and only the speed shows that it is in use.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "cohort/core/export.h"

namespace cohort {

// The path, with links resolved, of the library whose sgemm_ this process calls; empty when none
// is found.
COHORT_API std::string loaded_blas();
// Whether this path is the reference BLAS, judged by the names that distributions use.
COHORT_API bool is_reference_blas(std::string_view file);
// Logs a warning with the remedy when `file` is the reference BLAS.
COHORT_API void warn_of_slow_blas(const std::string& file);
// The same for the loaded library, once per process. Thread-safe.
COHORT_API void warn_of_slow_blas();
// Where the address space is limited, makes BLAS take the memory with which `threads` threads at a
// time multiply matrices, and throws resource_exhausted if there is too little, or if BLAS waits
// for it: OpenBLAS would do so for ever, inside of the first product. The same if there is no room
// for the other threads that LibTorch starts for them. Such an error may leave a thread that waits,
// so the process should end without exit(), as run_main() does. Thread-safe.
COHORT_API void take_blas_memory(std::size_t threads = 1);

}  // namespace cohort
