// SPDX-License-Identifier: Apache-2.0
// The uses of torch::nn's modules that the table of docs/modules.md lists. They are separate from
// the test that runs them, so that only one source includes torch/torch.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

namespace cohort::function {

// A module in use. Floating inputs come to `value` as leaves that require gradients.
struct ModuleStep {
  std::vector<std::pair<std::string, at::Tensor>> parameters;
  std::vector<std::pair<std::string, at::Tensor>> buffers;
  std::function<std::vector<at::Tensor>(std::uint64_t seed)> inputs;
  std::function<at::Tensor(const std::vector<at::Tensor>&)> value;
  std::function<void()> eval;  // Module::eval()
};

struct ModuleRow {
  std::string module;
  std::string use;  // empty: the plain one
  std::function<ModuleStep()> make;

  ModuleRow in_use(std::string how) && {
    use = std::move(how);
    return std::move(*this);
  }
};

inline void PrintTo(const ModuleRow& row, std::ostream* out) {
  *out << row.module << ' ' << row.use;
}

// The rows that exist in this LibTorch.
std::vector<ModuleRow> module_rows();

}  // namespace cohort::function
