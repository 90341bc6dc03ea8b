// SPDX-License-Identifier: Apache-2.0
// The state that a table of the store had at a cut.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "cohort/core/effect_handler.h"
#include "cohort/parameter_server/store/cut_rows.h"
#include "cohort/parameter_server/store/stored_table.h"

namespace cohort::parameter_server {

// Guarded by the table's mutex.
struct StoredTable::Cut {
  std::uint64_t version;
  rpc::TableUse use;
  std::vector<internal::OptimizerSlots> slots;  // those with rows: like one row
  std::vector<RowDirectory::Counts> counts;     // by part of the index; empty: there are none
  std::uint64_t counts_bytes;
  std::shared_ptr<CutMemory> memory;
  CutRows rows;  // columns: keys, values, and the slots with rows

  ~Cut() { memory->give_back(counts_bytes); }
};

}  // namespace cohort::parameter_server
