// SPDX-License-Identifier: Apache-2.0
// The lines of the user's code that an error comes from.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "cohort/core/export.h"

namespace cohort::function {

class CallStack;  // function/tracer/call_site.h

// Whether a shared object, by the name of its file without folders, belongs to the C++ runtime: it
// throws and unwinds on behalf of its callers.
COHORT_API bool is_runtime(std::string_view file);

// A value type.
class COHORT_API UserLines {
 public:
  // The lines of the calls that this thread is in. Never throws.
  static UserLines here() noexcept;
  // At most three lines "\n    at FUNCTION at FILE:LINE", innermost first; empty where nothing is
  // known. Reads debug information, which takes up to a second; known stacks take none.
  std::string text() const noexcept;

 private:
  std::shared_ptr<const CallStack> stack_;  // nullptr: nothing is known
};

}  // namespace cohort::function
