// SPDX-License-Identifier: Apache-2.0
// The state that a table of the store had at a cut.
#pragma once

#include <cstddef>
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

// An export of some of its rows, of which pieces are copied.
struct StoredTable::ExportedRows {
  struct Column {
    std::size_t number;
    std::size_t row_bytes;
    std::byte* to;  // the next row's place in the state
  };
  std::shared_ptr<CutMemory> memory = nullptr;  // tells this cut from a later one
  std::int64_t end = 0;                         // the rows before are copied
  std::int64_t range_end = 0;
  bool is_new = true;                      // no piece was copied; there may be no rows
  std::vector<std::int64_t> numbers = {};  // of the rows that have keys
  std::size_t done = 0;                    // how many of those are copied
  std::vector<Column> columns = {};
  rpc::StateOfRange state = {};
};

}  // namespace cohort::parameter_server
