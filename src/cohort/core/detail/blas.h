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
// Where the address space is limited, makes BLAS take the memory with which one thread at a time
// multiplies matrices, and throws resource_exhausted if there is too little for `threads` of them:
// OpenBLAS would wait for it for ever, inside of the first product. Thread-safe.
COHORT_API void take_blas_memory(std::size_t threads = 1);

}  // namespace cohort
