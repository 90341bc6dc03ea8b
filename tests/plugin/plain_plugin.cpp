// SPDX-License-Identifier: Apache-2.0
// A plugin that registers its function as a program does, and does not remove it when unloaded.
#include <memory>
#include <string>

#include "cohort/function/registry.h"

namespace {

const bool kIsRegistered = [] {
  cohort::function::register_function(
      "plugin.function",
      [held = std::make_shared<std::string>("destroyed with it")](std::vector<at::Tensor> inputs) {
        return held->empty() ? std::vector<at::Tensor>() : inputs;
      });
  return true;
}();

}  // namespace
