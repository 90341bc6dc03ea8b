// SPDX-License-Identifier: Apache-2.0
#include "cohort/function/variable_read.h"

#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include <unordered_set>
#include <utility>
#include <vector>

namespace cohort::function {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Node;
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

bool is_read(const Node& node) {
  return dynamic_cast<const torch::autograd::CppNode<VariableRead>*>(&node) != nullptr;
}

// Calls `visit` for each node of the tensor's graph, but for none below a copy that was read.
// Returns false when a call did, which ends the walk, and for a tensor without a graph.
template <class Visit>
bool walk_graph(const at::Tensor& tensor, const Visit& visit) {
  if (!tensor.defined() || !tensor.requires_grad() || tensor.is_leaf()) return false;
  std::vector<const Node*> nodes = {tensor.grad_fn().get()};
  std::unordered_set<const Node*> seen(nodes.begin(), nodes.end());
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    if (!visit(*nodes[i])) return false;
    if (is_read(*nodes[i])) continue;
    for (const torch::autograd::Edge& edge : nodes[i]->next_edges()) {
      if (edge.function && seen.insert(edge.function.get()).second)
        nodes.push_back(edge.function.get());
    }
  }
  return true;
}

}  // namespace

at::Tensor with_gradient_of(const at::Tensor& variable, at::Tensor copy) {
  if (!c10::GradMode::is_enabled() || !variable.requires_grad()) return copy;
  return VariableRead::apply(variable, Copy{std::move(copy)});
}

bool is_computed_from_reads(const at::Tensor& tensor) {
  // A node without edges accumulates the gradient of a leaf.
  return walk_graph(tensor,
                    [](const Node& node) { return is_read(node) || !node.next_edges().empty(); });
}

std::vector<at::Tensor> leaves_of(const at::Tensor& tensor) {
  std::vector<at::Tensor> leaves;
  walk_graph(tensor, [&](const Node& node) {
    const auto* leaf = dynamic_cast<const torch::autograd::AccumulateGrad*>(&node);
    if (leaf != nullptr) leaves.push_back(leaf->variable);
    return true;
  });
  return leaves;
}

}  // namespace cohort::function
