// SPDX-License-Identifier: Apache-2.0
// State that the parts of one running case share.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

#include "cohort/data/dataset_options.h"
#include "tests/conformance/case_directory.h"

namespace cohort::conformance {

// With several workers, each has its own. Thread-safe.
struct CaseState {
  explicit CaseState(std::shared_ptr<const CaseDirectory> files) : directory(std::move(files)) {}
  explicit CaseState(const Json& files) : directory(std::make_shared<const CaseDirectory>(files)) {}

  const std::shared_ptr<const CaseDirectory> directory;
  std::atomic<std::int64_t> calls = 0;  // calls of the map function count_calls
};

}  // namespace cohort::conformance
