// SPDX-License-Identifier: Apache-2.0
// Loads the plugin that its argument names, calls its function, unloads the plugin, calls again,
// and returns from main(). Prints each step.
#include <dlfcn.h>

#include <cstdio>

#include "cohort/core/error.h"
#include "cohort/function/registry.h"

namespace {

using cohort::function::RegisteredFunction;

void print_call(const char* how, const RegisteredFunction& function) {
  try {
    const std::size_t outputs = function({at::Tensor(), at::Tensor()}).size();
    std::printf("%s: %zu outputs\n", how, outputs);
  } catch (const cohort::Error& error) {
    std::printf("%s: %s\n", how, error.what());
  }
}

}  // namespace

int main(int, char** argv) {
  const char* const path = argv[1];
  void* const plugin = ::dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (plugin == nullptr) {
    std::printf("not loaded: %s\n", ::dlerror());
    return 1;
  }
  {
    const RegisteredFunction kept = cohort::function::registered_function("plugin.function");
    print_call("loaded", kept);
    ::dlclose(plugin);
    const bool is_loaded = ::dlopen(path, RTLD_LAZY | RTLD_NOLOAD) != nullptr;
    std::printf("after dlclose it is %s\n", is_loaded ? "loaded" : "unloaded");
    print_call("kept", kept);
  }
  print_call("by name", [](std::vector<at::Tensor> inputs) {
    return cohort::function::call_registered_function("plugin.function", std::move(inputs));
  });
  return 0;
}
