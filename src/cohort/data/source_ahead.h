// SPDX-License-Identifier: Apache-2.0
// A pipeline that a thread of the library runs while its consumer does something else.
#pragma once

#include <memory>
#include <stop_token>

#include "cohort/core/export.h"
#include "cohort/data/dataset.h"
#include "cohort/data/iterator.h"

namespace cohort::data {

// Like cancellable_source(). C++ functions draw random numbers from generators of their own, since
// which ones they got of LibTorch's default generator would depend on the timing.
COHORT_API std::unique_ptr<ElementSource> source_ahead(const Dataset& dataset,
                                                       const IterationOptions& options,
                                                       std::stop_token stop);

}  // namespace cohort::data
