// SPDX-License-Identifier: Apache-2.0
// The exception with which the parts of the tracer refuse an op. The recorder adds the op, its
// place in the trace and the call site.
#pragma once

#include <sstream>
#include <string>

#include "cohort/function/local_tensors.h"

namespace cohort::function {

// A value type; thrown and caught inside the tracer only, never through LibTorch.
struct Refusal {
  std::string reason;
};

template <class... Parts>
[[noreturn]] void refuse(const Parts&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  throw Refusal{text.str()};
}

// Refuses a tensor that is a variable of this process alone, with the variable's name.
inline void refuse_local_variable(const at::Tensor& tensor) {
  const std::string name = local_name_of(tensor);
  if (name.empty()) return;
  refuse("it uses the local variable '", name,
         "', which does not belong to the strategy that runs the program: make it with variable() "
         "of that strategy, or put it into a module that you give to replicate() of that strategy "
         "(for scheduled steps: the coordinator's ParameterServerStrategy)");
}

}  // namespace cohort::function
