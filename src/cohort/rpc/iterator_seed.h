// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>

#include "cohort/core/random.h"
#include "cohort/rpc/control.h"

namespace cohort::rpc {

// The seed of an iterator on `task` ("worker:1"). It differs between workers, except for an epoch's
// iterator, which must shuffle alike on all.
inline std::uint64_t seed_on(const IteratorSpec& iterator, std::string_view task) {
  return iterator.epoch ? iterator.seed : mix_seed(iterator.seed, task);
}

}  // namespace cohort::rpc
