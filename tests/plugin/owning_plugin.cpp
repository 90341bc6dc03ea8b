// SPDX-License-Identifier: Apache-2.0
// A plugin whose function is registered while the plugin is loaded.
#include <memory>
#include <string>

#include "cohort/function/registry.h"

namespace {

const cohort::function::FunctionRegistration kRegistration(
    "plugin.function",
    [held = std::make_shared<std::string>("destroyed with it")](std::vector<at::Tensor> inputs) {
      return held->empty() ? std::vector<at::Tensor>() : inputs;
    });

}  // namespace
