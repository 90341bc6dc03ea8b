// SPDX-License-Identifier: Apache-2.0
#include "cohort/function/detail/variable_read.h"

#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/custom_function.h>

#include <unordered_set>
#include <utility>
#include <vector>

namespace cohort::function {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Hides the copy from LibTorch, which would return a view of a tensor that is an argument too, and
// refuse to write into it.
struct Copy {
  at::Tensor tensor;
};

struct VariableRead : torch::autograd::Function<VariableRead> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor&, const Copy& copy) {
    context->set_materialize_grads(false);
    return copy.tensor;
  }
  static variable_list backward(AutogradContext*, const variable_list& gradients) {
    return {gradients[0], at::Tensor()};
  }
};

bool is_read(const torch::autograd::Node& node) {
  return dynamic_cast<const torch::autograd::CppNode<VariableRead>*>(&node) != nullptr;
}

}  // namespace

at::Tensor with_gradient_of(const at::Tensor& variable, at::Tensor copy) {
  if (!c10::GradMode::is_enabled() || !variable.requires_grad()) return copy;
  return VariableRead::apply(variable, Copy{std::move(copy)});
}

bool is_computed_from_reads(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.requires_grad() || tensor.is_leaf()) return false;
  std::vector<const torch::autograd::Node*> nodes = {tensor.grad_fn().get()};
  std::unordered_set<const torch::autograd::Node*> seen(nodes.begin(), nodes.end());
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    if (is_read(*nodes[i])) continue;
    if (nodes[i]->next_edges().empty()) return false;  // it accumulates the gradient of a leaf
    for (const torch::autograd::Edge& edge : nodes[i]->next_edges()) {
      if (edge.function && seen.insert(edge.function.get()).second)
        nodes.push_back(edge.function.get());
    }
  }
  return true;
}

}  // namespace cohort::function
