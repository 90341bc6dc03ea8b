// SPDX-License-Identifier: Apache-2.0
#include "cohort/optimizer/gradients/gradient_hooks.h"

#include <ATen/core/TensorBody.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/version.h>

#include <memory>
#include <utility>

#include "cohort/core/autograd_node.h"
#include "cohort/optimizer/loss_gradients.h"

namespace cohort::internal {
namespace {

using torch::autograd::GraphTask;
using torch::autograd::Node;
using torch::autograd::variable_list;
using Capture = GraphTask::ExecInfo::Capture;

class TakeGradient final : public Capture::GradCaptureHook {
 public:
  TakeGradient(GradientSink& sink, std::size_t place) : sink_(sink), place_(place) {}
  at::Tensor operator()(const at::Tensor& gradient) override {
    sink_.take(place_, gradient);
    return gradient;
  }

 private:
  GradientSink& sink_;
  const std::size_t place_;
};

void add_hook(Capture& capture, std::unique_ptr<Capture::GradCaptureHook> hook) {
#if TORCH_VERSION_MAJOR >= 2
  capture.DO_NOT_USE_DEPRECATED_register_capture_hook(std::move(hook));
#else
  capture.hooks_.push_back(std::move(hook));
#endif
}

// The first node of a backward pass. The hooks belong to that pass and not to the graph or the
// variables, so other passes, hooks of the user and grad() are as without them. A hook of a tensor
// would not do: LibTorch 1.13 calls none in a pass that returns its gradients.
struct FirstNode final : Node {
  FirstNode(const std::vector<at::Tensor>& asked_for, GradientSink& given)
      : inputs(asked_for), sink(given) {}
  variable_list apply(variable_list&& gradients) override {
    const auto* const nodes = torch::autograd::get_current_graph_task_exec_info();
    if (nodes == nullptr) return std::move(gradients);
    for (const auto& [node, info] : *nodes) {
      if (info.captures_ == nullptr) continue;
      for (Capture& capture : *info.captures_) {
        const auto place = static_cast<std::size_t>(capture.output_idx_);
        if (has_left_out_hooks(inputs[place])) continue;
        add_hook(capture, std::make_unique<TakeGradient>(sink, place));
      }
    }
    return std::move(gradients);
  }
  const std::vector<at::Tensor>& inputs;
  GradientSink& sink;
};

thread_local bool is_calling = false;

}  // namespace

std::size_t num_hooks(const at::Tensor& tensor) {
  return tensor.defined() ? torch::autograd::impl::hooks(tensor).size() : 0;
}

bool is_in_left_out_hooks() { return is_calling; }

bool has_left_out_hooks([[maybe_unused]] const at::Tensor& tensor) {
#if TORCH_VERSION_MAJOR >= 2
  return false;
#else
  return !torch::autograd::impl::hooks(tensor).empty();
#endif
}

at::Tensor call_left_out_hooks([[maybe_unused]] const at::Tensor& tensor, at::Tensor gradient) {
#if TORCH_VERSION_MAJOR >= 2
  return gradient;
#else
  struct Scope {
    Scope() : previous(std::exchange(is_calling, true)) {}
    ~Scope() { is_calling = previous; }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;
    const bool previous;
  };
  const c10::NoGradGuard no_grad;
  const Scope scope;
  variable_list values(tensor.output_nr() + 1);
  values.back() = std::move(gradient);
  for (const auto& hook : torch::autograd::impl::hooks(tensor)) values = (*hook)(values);
  return std::move(values.back());
#endif
}

at::Tensor with_sink(const at::Tensor& loss, const std::vector<at::Tensor>& inputs,
                     GradientSink& sink) {
  const auto first = make_node<FirstNode>(inputs, sink);
  first->set_next_edges(torch::autograd::collect_next_edges(loss));
  at::Tensor same = loss.detach();
  torch::autograd::create_gradient_edge(same, first);
  return same;
}

}  // namespace cohort::internal
