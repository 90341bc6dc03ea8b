// SPDX-License-Identifier: Apache-2.0
// How the parts of the tracer say no: the recorder adds the op, its place in the trace and the call
// site.
#pragma once

#include <sstream>
#include <string>
#include <utility>

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

}  // namespace cohort::function
