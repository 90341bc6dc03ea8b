// SPDX-License-Identifier: Apache-2.0
#include "cohort/optimizer/detail/loss_warnings.h"

#include <ATen/core/Reduction.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/generated/Functions.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "cohort/core/log.h"
#include "cohort/function/detail/trace.h"
#include "cohort/variable/detail/replica_count.h"

namespace cohort::internal {
namespace {

using torch::autograd::Node;

// Whether the node is one of these losses, of which it computes the mean.
template <class... Losses>
bool is_mean_of(const Node& node) {
  const auto averages = [](const auto* loss) {
    return loss != nullptr && loss->reduction == at::Reduction::Mean;
  };
  return (averages(dynamic_cast<const Losses*>(&node)) || ...);
}

bool is_mean(const Node& node) {
  using namespace torch::autograd::generated;  // NOLINT: names of LibTorch's, for one line
  return node.name().starts_with("MeanBackward") ||
         is_mean_of<NllLossBackward0, NllLoss2DBackward0, MseLossBackward0,
                    BinaryCrossEntropyBackward0, BinaryCrossEntropyWithLogitsBackward0,
                    SmoothL1LossBackward0, HuberLossBackward0, SoftMarginLossBackward0>(node);
}

// Whether the loss is a mean, or a sum with one among its last terms. What comes after a mean may
// divide it by the number of replicas.
bool has_mean(const at::Tensor& loss) {
  constexpr int kTerms = 16;
  std::vector<const Node*> nodes{loss.grad_fn().get()};
  for (int i = 0; i < kTerms && !nodes.empty(); ++i) {
    const Node* const node = nodes.back();
    nodes.pop_back();
    if (node == nullptr) continue;
    if (is_mean(*node)) return true;
    if (!node->name().starts_with("AddBackward")) continue;
    for (const auto& edge : node->next_edges()) nodes.push_back(edge.function.get());
  }
  return false;
}

constexpr std::int64_t kCallsToLookAt = 1000;

}  // namespace

void warn_of_equal_replicas(std::string_view what, std::size_t replicas) {
  log_warn("[optimizer.minimize] got the same ", what, " in all ", replicas, " replicas in ",
           kStepsToCompare,
           " steps, so each seems to compute the same rows, whose gradients are added. A plain "
           "tensor that is given to run() or to a step of function() is whole in each replica: "
           "give it an element of distribute_dataset(), or a PerReplica");
}

void LossWarnings::look_at_step(bool is_scaled) {
  const int replicas = variable::ReplicaCount::current();
  if (replicas == 1 || is_scaled || has_warned_of_step_.exchange(true)) return;
  log_warn("[strategy.TorchOptimizer] got a step() with gradients of a run() in which ",
           "average_loss() was not called; the gradients of the ", replicas,
           " replicas are added, so a loss that is a mean of the replica's rows counts ", replicas,
           " times too much. Call backward() of average_loss(losses) of losses with "
           "at::Reduction::None. A program that divides its losses by the rows of all replicas "
           "itself is right; this line comes once");
}

void LossWarnings::look_at(const at::Tensor& loss) {
  const int replicas = variable::ReplicaCount::current();
  if (replicas == 1 || calls_++ >= kCallsToLookAt) return;
  const Lock lock(mutex_);
  if (!has_warned_of_mean_ && has_mean(loss)) {
    has_warned_of_mean_ = true;
    log_warn("[optimizer.minimize] got a loss that is a mean over the rows of one replica; the ",
             "gradients of the ", replicas, " replicas are added, so the step is ", replicas,
             " times that of one device with the whole batch. Minimize average_loss(losses) of "
             "losses with at::Reduction::None, and scale_regularization_loss() of the rest");
  }
  if (!has_compared_ && loss.is_cpu() && function::Trace::current() == nullptr) compare(loss);
}

void LossWarnings::compare(const at::Tensor& loss) {
  const auto replica = static_cast<std::size_t>(variable::ReplicaCount::local_replica());
  const double value = loss.detach().item<double>();
  if (replica < are_known_.size() && are_known_[replica]) {  // the next step has begun
    const double first = losses_.front();
    // A loss of 0 has no gradient.
    const bool are_equal = losses_.size() > 1 && first != 0 && std::isfinite(first) &&
                           std::count(losses_.begin(), losses_.end(), first) ==
                               static_cast<std::ptrdiff_t>(losses_.size());
    ++equal_steps_;
    has_compared_ = !are_equal || equal_steps_ == kStepsToCompare;
    if (are_equal && has_compared_) warn_of_equal_replicas("loss", losses_.size());
    losses_.clear();
    are_known_.clear();
  }
  losses_.resize(std::max(losses_.size(), replica + 1));
  are_known_.resize(losses_.size());
  losses_[replica] = value;
  are_known_[replica] = true;
}

}  // namespace cohort::internal
