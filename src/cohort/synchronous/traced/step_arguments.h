// SPDX-License-Identifier: Apache-2.0
// The arguments of the replicas in a step of function().
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstddef>
#include <vector>

#include "cohort/core/nest.h"
#include "cohort/strategy/run_arguments.h"

namespace cohort::internal {

// For errors in the step. Used only from the thread that calls it.
class ArgumentsOfStep final : public RunArguments {
 public:
  explicit ArgumentsOfStep(const std::vector<std::vector<Nest>>& arguments)
      : RunArguments(arguments.size()), arguments_(arguments) {}

 private:
  void add_tensors(std::size_t replica, std::vector<at::Tensor>& tensors) const override {
    for (const Nest& each : arguments_[replica]) add(each, tensors);
  }
  // The arguments are of each replica already: a plain tensor is the same one in all. Numbers do
  // not count, which become tensors in each.
  bool is_distributed() const override {
    const auto are_one = [](const at::Tensor& a, const at::Tensor& b) {
      const bool are_numbers = a.defined() && b.defined() && a.dim() == 0 && b.dim() == 0;
      return are_numbers || a.is_same(b);
    };
    const std::vector<Nest>& first = arguments_[0];
    for (std::size_t replica = 1; replica < arguments_.size(); ++replica) {
      for (std::size_t i = 0; i < first.size(); ++i) {
        const std::vector<at::Tensor> a = first[i].flatten_tensors();
        const std::vector<at::Tensor> b = arguments_[replica][i].flatten_tensors();
        if (!std::equal(a.begin(), a.end(), b.begin(), b.end(), are_one)) return true;
      }
    }
    return false;
  }

  const std::vector<std::vector<Nest>>& arguments_;
};

}  // namespace cohort::internal
