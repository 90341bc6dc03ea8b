// SPDX-License-Identifier: Apache-2.0
// Functions that servers know by name: the way out for code that cannot be traced. The same program
// must run on every task, as each registers its own copy before its server starts.
//
//   cohort::function::register_function(
//       "decode_jpeg", [](std::vector<at::Tensor> in) { … return out; });
//   auto decode = cohort::Function::registered("decode_jpeg");
//
// A plugin that can be unloaded (dlclose) holds its registration in a static object instead:
//
//   const cohort::function::FunctionRegistration decode_jpeg("decode_jpeg", decode);
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cohort/core/export.h"

namespace cohort::function {

// May be called from several threads at once.
using RegisteredFunction = std::function<std::vector<at::Tensor>(std::vector<at::Tensor>)>;

// For the rest of the process's life: a shared library that calls this stays loaded, also after
// dlclose(). Thread-safe. An empty name or function is invalid_argument, a name that is taken
// already_exists.
COHORT_API void register_function(std::string name, RegisteredFunction function);

// A function that is registered as long as this object lives. Its destructor waits for the calls
// that run, ten seconds at most, so it must not be reached from inside of one. Calls that come
// later, also through what a server has looked up before, are not_found and name the function; the
// name is free again. Thread-compatible.
class COHORT_API FunctionRegistration {
 public:
  // Throws as register_function().
  FunctionRegistration(std::string name, RegisteredFunction function);
  ~FunctionRegistration();
  FunctionRegistration(const FunctionRegistration&) = delete;
  FunctionRegistration& operator=(const FunctionRegistration&) = delete;

 private:
  class Entry;
  friend class Registry;
  std::shared_ptr<Entry> entry_;
};

// Thread-safe. Throws not_found, with the names that there are. What it gives may be kept and
// called at any time: not_found where the registration has gone since.
COHORT_API RegisteredFunction registered_function(std::string_view name);
// The same function, called at once.
COHORT_API std::vector<at::Tensor> call_registered_function(std::string_view name,
                                                            std::vector<at::Tensor> inputs);
COHORT_API bool is_registered_function(std::string_view name);

}  // namespace cohort::function
