// SPDX-License-Identifier: Apache-2.0
// Functions that servers know by name, for code that cannot be traced. The same program must run on
// every task, because each task registers its own copy before its server starts.
//
//   cohort::function::register_function(
//       "decode_jpeg", [](std::vector<at::Tensor> in) { … return in; });
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

// Registers the function until the process ends; a shared library that calls this stays loaded,
// even after dlclose(). Thread-safe. An empty name or function is invalid_argument; a name that is
// registered already is already_exists.
COHORT_API void register_function(std::string name, RegisteredFunction function);

// Registers a function for the lifetime of this object. The destructor waits for the running calls,
// ten seconds at most, so it must not be called from inside one of them. Later calls, also those of
// a server that has looked the function up before, throw not_found with its name; the name is free
// again. Thread-compatible.
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

// Thread-safe. Throws not_found, with the registered names. The result may be kept and called at
// any time; the call throws not_found after the registration has been destroyed.
COHORT_API RegisteredFunction registered_function(std::string_view name);
// Looks the function up and calls it.
COHORT_API std::vector<at::Tensor> call_registered_function(std::string_view name,
                                                            std::vector<at::Tensor> inputs);
COHORT_API bool is_registered_function(std::string_view name);

}  // namespace cohort::function
