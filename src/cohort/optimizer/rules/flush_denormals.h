// SPDX-License-Identifier: Apache-2.0
// Numbers too small for a normal exponent count as zero in the loops of update rules.
#pragma once

#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

namespace cohort::optimizer {

// While it lives, its thread reads and writes such numbers (below 1.2e-38 in float32) as zero, as
// TensorFlow's kernels do. A weight whose gradient stays zero would otherwise have a momentum that
// decays into them and never reaches zero; x86 processors take some 100 cycles for each of them.
class FlushDenormals {
#if defined(__SSE2__)
 public:
  FlushDenormals() noexcept : before_(_mm_getcsr()) { _mm_setcsr(before_ | kFlush); }
  ~FlushDenormals() { _mm_setcsr(before_); }
  FlushDenormals(const FlushDenormals&) = delete;
  FlushDenormals& operator=(const FlushDenormals&) = delete;

 private:
  static constexpr unsigned kFlush = 0x8040;  // results to zero (FTZ), and operands (DAZ)

  const unsigned before_;
#endif
};

}  // namespace cohort::optimizer
