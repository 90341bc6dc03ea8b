// SPDX-License-Identifier: Apache-2.0
// The state of variables as it goes to another process, another group of workers or a file, and
// back (VariableHome::export_state() and import_state()).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "cohort/core/bytes.h"
#include "cohort/core/effect_handler.h"
#include "cohort/core/export.h"
#include "cohort/core/tensor_spec.h"
#include "cohort/variable/variable.h"

namespace cohort {

// A variable, or some of its rows. Slots that have no rows, such as a count of steps, are in each
// record.
struct VariableRecord {
  struct Value {
    at::Tensor tensor = {};
    std::vector<internal::OptimizerSlots> slots = {};
  };
  std::string name = {};
  TensorSpec spec = {};        // of the whole variable
  std::int64_t first_row = 0;  // where the rows of these tensors begin
  // One that all replicas have, or one for each replica of a process.
  std::vector<Value> values = {};
  // The keys of these rows, int64 [n], if it is a table. The record with first_row 0 comes first,
  // and its import replaces what the table has.
  at::Tensor keys = {};
  // These keys of a table have no rows yet, and the one value is the number of updates that each
  // has had, int64 [n].
  bool is_of_counts = false;

  bool is_whole() const { return values.at(0).tensor.sizes() == at::IntArrayRef(*spec.sizes); }
};

// The state of all variables of a home, with what belongs to them.
struct HomeState {
  std::map<std::string, VariableRecord> variables = {};
  std::map<std::string, Bytes> attached = {};  // AttachedState, by key
  bool is_empty() const { return variables.empty() && attached.empty(); }
};

// The contents of a walk beside names and specs.
struct StateWalk {
  bool has_slots = true;
  // The value of each replica, in the variables' own memory, where replicas may differ; else what
  // read() gives, in memory of its own.
  bool is_by_replica = false;
  // Whether a slot of which this process has only a share is an undefined tensor, rather than an
  // error.
  bool has_gaps = false;
  // About how many bytes of values one record has where they travel.
  std::uint64_t chunk_bytes = std::uint64_t{16} << 20;
};
// `i`: the variable's position among those of the call.
using TakeRecord = std::function<void(std::size_t i, VariableRecord record)>;

// Walks over variables of any homes. A variable on servers may come in several records one after
// the other, which are of one moment.
COHORT_API void export_state(std::span<const Variable> variables, const StateWalk& walk,
                             const TakeRecord& take);
// The same in memory of its own.
COHORT_API VariableRecord::Value copy_of(const VariableRecord::Value& value);
// One record for each variable, in this order. Throws unimplemented for a table, which may be too
// large for one record.
COHORT_API std::vector<VariableRecord> whole_state(std::span<const Variable> variables,
                                                   const StateWalk& walk);
// Sets the value and all slots of a variable of the record's spec; no record of the variable's
// slots leaves it without slots. Throws invalid_argument, and changes nothing, for a record of
// another spec or of a part of the rows.
COHORT_API void import_state(const Variable& variable, const VariableRecord& record);

}  // namespace cohort
