// SPDX-License-Identifier: Apache-2.0
// Which BLAS library LibTorch multiplies matrices with. The reference one is about twenty times
// slower than OpenBLAS, and nothing but the speed tells.
#pragma once

#include <string>
#include <string_view>

#include "cohort/core/export.h"

namespace cohort {

// The file of the library whose sgemm_ this process calls, links resolved; empty when none is
// found.
COHORT_API std::string loaded_blas();
// Whether such a file is the reference BLAS, by the names that distributions give it.
COHORT_API bool is_reference_blas(std::string_view file);
// One warning with the remedy when `file` is the reference BLAS.
COHORT_API void warn_of_slow_blas(const std::string& file);
// The same for the loaded one, once a process. Thread-safe.
COHORT_API void warn_of_slow_blas();

}  // namespace cohort
