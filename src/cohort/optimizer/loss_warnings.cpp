// SPDX-License-Identifier: Apache-2.0
#include "cohort/optimizer/loss_warnings.h"

#include <algorithm>
#include <cmath>

#include "cohort/core/log.h"
#include "cohort/function/trace.h"
#include "cohort/optimizer/gradients/loss_form.h"
#include "cohort/variable/replica_count.h"

namespace cohort::internal {
namespace {

constexpr std::int64_t kCallsToLookAt = 1000;
// Equal losses of all replicas in so many steps are no accident.
constexpr int kStepsToCompare = 3;

}  // namespace

void LossWarnings::look_at_step(std::string_view call, bool is_scaled) {
  const int replicas = variable::ReplicaCount::current();
  if (replicas == 1 || is_scaled || has_warned_of_step_.exchange(true)) return;
  log_warn("[strategy.TorchOptimizer] got a ", call, "() with gradients of a run() in which ",
           "average_loss() was not called; the gradients of the ", replicas,
           " replicas are added, so a loss that is a mean of the replica's rows counts ", replicas,
           " times too much. Compute the gradients of average_loss(losses) of losses with "
           "at::Reduction::None. A program that divides its losses by the rows of all replicas "
           "itself is right; this line comes once");
}

bool LossWarnings::look_at(const at::Tensor& loss) {
  const int replicas = variable::ReplicaCount::current();
  if (replicas == 1 || calls_++ >= kCallsToLookAt) return true;
  const Lock lock(mutex_);
  LossForm form = LossForm::scaled;
  if (!has_warned_of_mean_) {
    form = form_of(loss);
    has_warned_of_mean_ = form == LossForm::mean ||
                          (form == LossForm::computed_mean && !variable::ReplicaCount::is_scaled());
    if (has_warned_of_mean_)
      log_warn("[optimizer.minimize] got a loss that is a mean over the rows of one replica; the ",
               "gradients of the ", replicas, " replicas are added, so the step is ", replicas,
               " times that of one device with the whole batch. Minimize average_loss(losses) of "
               "losses with at::Reduction::None, and scale_regularization_loss() of the rest");
  }
  if (!has_compared_ && loss.is_cpu() && function::Trace::current() == nullptr) compare(loss);
  return form != LossForm::unknown;
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
    if (are_equal && has_compared_)
      log_warn("[optimizer.minimize] got the same loss in all ", losses_.size(), " replicas in ",
               kStepsToCompare,
               " steps, so each seems to compute the same rows, such as those of a batch that the "
               "step captures, and their gradients are added. Give run() an element of "
               "distribute_dataset(), or a PerReplica, as an argument. A loss of the rows of all "
               "replicas (all_gather(), all_reduce()), or a penalty without rows, is right; this "
               "line comes once");
    losses_.clear();
    are_known_.clear();
  }
  losses_.resize(std::max(losses_.size(), replica + 1));
  are_known_.resize(losses_.size());
  losses_[replica] = value;
  are_known_[replica] = true;
}

}  // namespace cohort::internal
