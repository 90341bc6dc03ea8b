// SPDX-License-Identifier: Apache-2.0
// The state that a variable of the store had at a cut.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "cohort/core/effect_handler.h"
#include "cohort/parameter_server/store/cut_rows.h"
#include "cohort/parameter_server/store/stored_variable.h"

namespace cohort::parameter_server {

// Guarded by the variable's mutex.
struct StoredVariable::Cut {
  std::uint64_t version;
  // Slots with rows are the variable's own, whose old rows are kept; the others are copies.
  std::vector<internal::OptimizerSlots> slots;
  std::vector<std::vector<std::size_t>> columns;  // by optimizer and slot; 0: it is a copy
  std::shared_ptr<CutMemory> memory;
  CutRows rows;  // column 0 has the values
};

}  // namespace cohort::parameter_server
