// SPDX-License-Identifier: Apache-2.0
// What assignments and changes of rows have in common, and what replicas write together where a
// variable has an aggregation. run() (mirrored_writes.cpp) and steps of function()
// (traced/step_writes.cpp) make each write by these functions.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "cohort/synchronous/mirrored/mirrored_variable.h"
#include "cohort/variable/rows.h"
#include "cohort/variable/variable_home.h"

namespace cohort::internal {

class MirroredHome;

// Whether all replicas write the same object, and whether that is a number of the host.
struct OneForAll {
  bool is_one = false;
  bool is_number = false;
};
OneForAll one_for_all(const std::vector<Assignment>& of_replicas);
OneForAll one_for_all(const std::vector<RowUpdate>& of_replicas);

// A write of one variable that each replica of this process makes.
template <class Write>
struct JointWrite {
  std::vector<Write> of_replicas;
  OneForAll one;
};
// What the replicas write together, of each of these. With several workers, all of them make this
// call. Throws invalid_argument for a sum of what is the same in all replicas.
std::vector<Assignment> combined(const MirroredHome& home,
                                 std::vector<JointWrite<Assignment>> writes);
std::vector<RowUpdate> combined(const MirroredHome& home,
                                std::vector<JointWrite<RowUpdate>> writes);

// The name of the kind of write, "assign", and of the one call, "assign_add".
constexpr std::string_view kind_of_write(const Assignment&) { return "assign"; }
constexpr std::string_view kind_of_write(const RowUpdate&) { return "scatter"; }
std::string verb_of(const Assignment& write);
std::string verb_of(const RowUpdate& write);
// For messages of a write that cannot be made: "variable.assign", "variable.scatter_add".
inline std::string call_of(const Assignment&) { return "variable.assign"; }
inline std::string call_of(const RowUpdate& write) { return variable::call_name(write.kind); }

// The tensors of a write, and the same write with others.
inline std::vector<at::Tensor> write_tensors(const Assignment& write) { return {write.value}; }
inline std::vector<at::Tensor> write_tensors(const RowUpdate& write) {
  return {write.indices, write.rows};
}
Assignment with_tensors(Assignment write, const std::vector<at::Tensor>& tensors);
RowUpdate with_tensors(RowUpdate write, const std::vector<at::Tensor>& tensors);

// Throws if the variable cannot be written so; `is_of_all`: in all its values.
void check_write(const Assignment& write, bool is_of_all);
void check_write(const RowUpdate& write, bool is_of_all);
// Throws if the values do not fit; assignments were checked when they were traced.
inline void check_values(const Assignment&) {}
void check_values(const RowUpdate& write);
void write_all(const Assignment& write);
void write_all(const RowUpdate& write);
void write_value(std::size_t i, const Assignment& write);
void write_value(std::size_t i, const RowUpdate& write);

}  // namespace cohort::internal
