// SPDX-License-Identifier: Apache-2.0
// Functions that servers know by name, for code that cannot be traced. The program of every task
// must register the function before its server starts, so usually all tasks run the same program.
//
//   cohort::function::register_function(
//       "decode_jpeg", [](std::vector<at::Tensor> in) { … return in; });
//   auto decode = cohort::Function::registered("decode_jpeg");
//
// A plugin that can be unloaded (dlclose) keeps its registration in a static object instead:
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
// even after dlclose(). Throws invalid_argument if the name or the function is empty, and
// already_exists if the name is registered already. Thread-safe.
COHORT_API void register_function(std::string name, RegisteredFunction function);

// Registers a function for the lifetime of this object. The destructor waits at most ten seconds
// for running calls, so it must not be called inside one of them. Later calls throw not_found with
// the function's name, even if the caller looked the function up before; the name is free again.
// Thread-compatible.
class COHORT_API FunctionRegistration {
 public:
  // Throws as register_function() does.
  FunctionRegistration(std::string name, RegisteredFunction function);
  ~FunctionRegistration();
  FunctionRegistration(const FunctionRegistration&) = delete;
  FunctionRegistration& operator=(const FunctionRegistration&) = delete;

 private:
  class Entry;
  friend class Registry;
  std::shared_ptr<Entry> entry_;
};

// Returns the function. Throws not_found, with the registered names, if there is none. The result
// may be kept and called at any time; after the registration is destroyed, a call throws not_found.
// Thread-safe.
COHORT_API RegisteredFunction registered_function(std::string_view name);
// Looks the function up and calls it.
COHORT_API std::vector<at::Tensor> call_registered_function(std::string_view name,
                                                            std::vector<at::Tensor> inputs);
COHORT_API bool is_registered_function(std::string_view name);

}  // namespace cohort::function
