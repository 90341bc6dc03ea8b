// SPDX-License-Identifier: Apache-2.0
#include "cohort/optimizer/loss_gradients.h"

#include <ATen/core/TensorBody.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/version.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "cohort/core/autograd_node.h"
#include "cohort/core/error.h"
#include "cohort/core/tensor_spec.h"
#include "cohort/core/thread_value.h"
#include "cohort/function/trace.h"
#include "cohort/function/user_lines.h"
#include "cohort/variable/replica_count.h"
#include "cohort/variable/variable_home.h"

namespace cohort::internal {
namespace {

using torch::autograd::GraphTask;
using torch::autograd::Node;
using torch::autograd::variable_list;
using Capture = GraphTask::ExecInfo::Capture;

thread_local bool is_calling_hooks = false;

std::string lines() { return function::UserLines::here().text(); }

bool is_any_trained(std::span<const Variable> variables) {
  return std::any_of(variables.begin(), variables.end(),
                     [](const auto& each) { return each.tensor().requires_grad(); });
}

// The possible reason why the loss has no gradient, and the remedy.
std::string why_without_gradient(std::span<const Variable> variables) {
  if (c10::InferenceMode::is_enabled())
    return "; a c10::InferenceMode is open here, perhaps around run(): train outside of it";
  if (!c10::GradMode::is_enabled())
    return "; a torch::NoGradGuard is open here, perhaps around run(): train outside of it";
  if (!is_any_trained(variables))
    return "; requires_grad_(false) has frozen all of these: call requires_grad_() of those to "
           "train, inside of run()";
  return "; compute it in the same step from tensor() or read() of the variables, with gradients "
         "enabled (no torch::NoGradGuard or c10::InferenceMode around the forward pass) and "
         "nothing detached (outside of a step, read() of a variable on a server gives a copy "
         "without a gradient)";
}

// Whether the gradients of other replicas are added to those of this one, and nothing keeps all of
// them from having some.
bool may_others_have_gradients(std::span<const Variable> variables) {
  return variable::ReplicaCount::current() > 1 && function::Trace::current() == nullptr &&
         c10::GradMode::is_enabled() && !c10::InferenceMode::is_enabled() &&
         is_any_trained(variables);
}

// Whether a user has registered hooks on the tensor (register_hook()) that
// torch::autograd::grad() leaves out: LibTorch 2 calls them itself, LibTorch 1.13 calls only those
// of tensors whose gradient is not asked for.
bool has_left_out_hooks([[maybe_unused]] const at::Tensor& tensor) {
#if TORCH_VERSION_MAJOR >= 2
  return false;
#else
  return num_hooks(tensor) > 0;
#endif
}

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

// Returns the gradient after the hooks of the tensor, called as backward() calls them: one after
// the other, without a graph. They may write into the gradient.
at::Tensor call_left_out_hooks([[maybe_unused]] const at::Tensor& tensor, at::Tensor gradient) {
#if TORCH_VERSION_MAJOR >= 2
  return gradient;
#else
  const c10::NoGradGuard no_grad;
  const ScopedValue scope(is_calling_hooks, true);
  variable_list values(tensor.output_nr() + 1);
  values.back() = std::move(gradient);
  for (const auto& hook : torch::autograd::impl::hooks(tensor)) values = (*hook)(values);
  return std::move(values.back());
#endif
}

// Returns a tensor whose backward pass, torch::autograd::grad() of it with these inputs, is that of
// `loss`, and gives `sink` the gradient of each input by its place in the list, as soon as nothing
// more is added to it. Gradients of inputs with has_left_out_hooks() are not given. `inputs` and
// `sink` must live until that pass has ended.
at::Tensor with_sink(const at::Tensor& loss, const std::vector<at::Tensor>& inputs,
                     GradientSink& sink) {
  const auto first = make_node<FirstNode>(inputs, sink);
  first->set_next_edges(torch::autograd::collect_next_edges(loss));
  at::Tensor same = loss.detach();
  torch::autograd::create_gradient_edge(same, first);
  return same;
}

// Not while the pass runs: it holds a lock where it takes a gradient, and the hooks are the user's.
void call_hooks(const std::vector<at::Tensor>& inputs, std::vector<at::Tensor>& gradients,
                GradientSink* sink) {
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (!gradients[i].defined() || !has_left_out_hooks(inputs[i])) continue;
    // A hook may write into it, and another input may have the same one.
    if (!is_only_user(gradients[i])) gradients[i] = gradients[i].clone();
    gradients[i] = call_left_out_hooks(inputs[i], std::move(gradients[i]));
    if (sink != nullptr) sink->take(i, gradients[i]);
  }
}

}  // namespace

bool check_loss(const at::Tensor& loss, std::span<const Variable> variables) {
  COHORT_CHECK(
      loss.defined(), ErrorCode::invalid_argument,
      "[optimizer.minimize] expected a floating-point scalar as loss, got an undefined tensor",
      lines());
  COHORT_CHECK(loss.numel() == 1 && loss.is_floating_point(), ErrorCode::invalid_argument,
               "[optimizer.minimize] expected a floating-point scalar as loss, got ",
               TensorSpec::of(loss).to_string(),
               variable::ReplicaCount::current() > 1
                   ? "; reduce it with average_loss(), since the gradients of replicas are added"
                   : "; reduce it with mean()",
               lines());
  if (loss.requires_grad()) return true;
  COHORT_CHECK(may_others_have_gradients(variables), ErrorCode::invalid_argument,
               "[optimizer.minimize] expected a loss that depends on ", names_of(variables),
               ", got one without a gradient", why_without_gradient(variables), lines());
  return false;
}

std::string no_gradient_text(std::span<const Variable> variables) {
  return "expected a loss that depends on " + names_of(variables) +
         " in one replica at least, got none in any (was it computed with another model?)" +
         why_without_gradient(variables);
}

std::vector<at::Tensor> loss_gradients(const at::Tensor& loss,
                                       const std::vector<at::Tensor>& inputs,
                                       std::span<const Variable> variables, GradientSink* sink) {
  COHORT_CHECK(!inputs.empty(), ErrorCode::invalid_argument,
               "[optimizer.minimize] expected a variable that requires a gradient, got ",
               names_of(variables), ", all frozen by requires_grad_(false)", lines());
  if (!loss.requires_grad()) {
    if (sink != nullptr) sink->finish();
    return std::vector<at::Tensor>(inputs.size());
  }
  std::vector<at::Tensor> gradients = torch::autograd::grad(
      {sink == nullptr ? loss : with_sink(loss, inputs, *sink)}, inputs, {}, /*retain_graph=*/true,
      /*create_graph=*/false, /*allow_unused=*/true);
  const bool is_any_defined = std::any_of(gradients.begin(), gradients.end(),
                                          [](const at::Tensor& each) { return each.defined(); });
  COHORT_CHECK(is_any_defined || may_others_have_gradients(variables), ErrorCode::invalid_argument,
               "[optimizer.minimize] expected a loss that depends on ", names_of(variables),
               ", got one that depends on none of them; was it computed with another "
               "model, or from copies without a gradient, as read() of a variable on a server "
               "gives them outside of a step?",
               lines());
  call_hooks(inputs, gradients, sink);
  if (sink != nullptr) sink->finish();
  return gradients;
}

std::size_t num_hooks(const at::Tensor& tensor) {
  return tensor.defined() ? torch::autograd::impl::hooks(tensor).size() : 0;
}

bool is_in_left_out_hooks() { return is_calling_hooks; }

bool is_only_user(const at::Tensor& gradient) {
  if (gradient.layout() != at::kStrided || gradient.use_count() != 1) return false;
  if (!gradient.storage().resizable()) return false;
  const auto users = gradient.storage().use_count();
  if (users == 1) return true;
  // A view, as the gradient of Linear's weight, keeps the tensor of which it is one.
  const auto* const view = torch::autograd::impl::get_view_autograd_meta(gradient);
  if (users != 2 || view == nullptr) return false;
  const bool is_backward = view->has_bw_view();
  const auto& info = is_backward ? view->get_backward_view() : view->get_forward_view();
  const bool are_two = is_backward && view->has_fw_view() && !view->shared_view_info();
  return info.base_.is_alias_of(gradient) && info.base_.use_count() == (are_two ? 2U : 1U);
}

}  // namespace cohort::internal
