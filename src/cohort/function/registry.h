// SPDX-License-Identifier: Apache-2.0
// Functions that servers know by name: the way out for code that cannot be traced. The same program
// must run on every task, as each registers its own copy before its server starts.
//
//   cohort::function::register_function("decode_jpeg", [](std::vector<at::Tensor> in) { … return
//   out; }); auto decode = cohort::Function::registered("decode_jpeg");
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "cohort/core/export.h"

namespace cohort::function {

// May be called from several threads at once.
using RegisteredFunction = std::function<std::vector<at::Tensor>(std::vector<at::Tensor>)>;

// Thread-safe. An empty name or function is invalid_argument, a name that is taken already_exists.
COHORT_API void register_function(std::string name, RegisteredFunction function);
// Thread-safe. Throws not_found, with the names that there are. The reference stays valid: nothing
// is ever removed.
COHORT_API const RegisteredFunction& registered_function(std::string_view name);
COHORT_API bool is_registered_function(std::string_view name);

}  // namespace cohort::function
