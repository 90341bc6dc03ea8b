// SPDX-License-Identifier: Apache-2.0
// The joint writes of replicas where a variable has an aggregation. run() (mirrored_writes.cpp) and
// steps of function() (traced/step_writes.cpp) make each write by these functions.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "cohort/synchronous/mirrored/mirrored_variable.h"
#include "cohort/variable/effect_kinds.h"
#include "cohort/variable/variable_home.h"

namespace cohort::internal {

class MirroredHome;

// Whether all replicas write the same object, and whether that is a number of the host.
struct OneForAll {
  bool is_one = false;
  bool is_number = false;
};
OneForAll one_for_all(const std::vector<VariableWrite>& of_replicas);

// A write of one variable that each replica of this process makes.
struct JointWrite {
  std::vector<VariableWrite> of_replicas;
  OneForAll one;
};
// Combines the writes of the replicas, one for each of `writes`; all are assignments, or changes of
// rows. With several workers, all of them make this call. Throws invalid_argument for a sum of what
// is the same in all replicas.
std::vector<VariableWrite> combined(const MirroredHome& home, std::vector<JointWrite> writes);

// For messages: "assign" or "scatter".
inline std::string_view kind_of_write(const VariableWrite& write) {
  return variable::is_scatter(write.kind) ? "scatter" : "assign";
}
// For messages of a write that cannot be made: "variable.assign", "variable.scatter_add".
inline std::string call_of(const VariableWrite& write) {
  return variable::is_scatter(write.kind) ? variable::call_name(write.kind) : "variable.assign";
}

// The tensors of a write, and the same write with others.
std::vector<at::Tensor> write_tensors(const VariableWrite& write);
VariableWrite with_tensors(VariableWrite write, const std::vector<at::Tensor>& tensors);

// Throws if the variable cannot be written so; `is_of_all`: in all its values.
void check_write(const VariableWrite& write, bool is_of_all);

}  // namespace cohort::internal
