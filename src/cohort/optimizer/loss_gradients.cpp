// SPDX-License-Identifier: Apache-2.0
#include "cohort/optimizer/loss_gradients.h"

#include <ATen/core/TensorBody.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <utility>

#include "cohort/core/error.h"
#include "cohort/core/tensor_spec.h"
#include "cohort/function/trace.h"
#include "cohort/function/user_lines.h"
#include "cohort/optimizer/gradients/gradient_hooks.h"
#include "cohort/variable/replica_count.h"
#include "cohort/variable/variable_home.h"

namespace cohort::internal {
namespace {

std::string lines() { return function::UserLines::here().text(); }

// The possible reason why the loss has no gradient, and the remedy.
std::string why_without_gradient(std::span<const Variable> variables) {
  if (c10::InferenceMode::is_enabled())
    return "; a c10::InferenceMode is open here, perhaps around run(): train outside of it";
  if (!c10::GradMode::is_enabled())
    return "; a torch::NoGradGuard is open here, perhaps around run(): train outside of it";
  const bool is_any_trained = std::any_of(variables.begin(), variables.end(), [](const auto& each) {
    return each.tensor().requires_grad();
  });
  if (!is_any_trained)
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
         std::any_of(variables.begin(), variables.end(),
                     [](const auto& each) { return each.tensor().requires_grad(); });
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
