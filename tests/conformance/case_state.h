// SPDX-License-Identifier: Apache-2.0
// What the parts of one running case share.
#pragma once

#include <atomic>
#include <cstdint>

#include "cohort/data/input_context.h"
#include "tests/conformance/case_directory.h"

namespace cohort::conformance {

// Thread-safe: `directory` is only read.
struct CaseState {
  explicit CaseState(const Json& files) : directory(files) {}

  CaseDirectory directory;
  std::atomic<std::int64_t> calls = 0;  // of the map function count_calls
};

}  // namespace cohort::conformance
