// SPDX-License-Identifier: Apache-2.0
#include <ATen/TensorOperators.h>
#include <ATen/ops/scalar_tensor.h>

#include <algorithm>

#include "cohort/core/error.h"
#include "cohort/core/log.h"
#include "cohort/core/tensor_spec.h"
#include "cohort/strategy/contexts.h"
#include "cohort/strategy/replica_collective.h"
#include "cohort/strategy/replica_trace.h"
#include "cohort/strategy/strategy_access.h"
#include "cohort/variable/replica_count.h"

namespace cohort {
namespace {

ReplicaContext& replica_of(std::string_view call) {
  ReplicaContext* replica = get_replica_context();
  COHORT_CHECK(replica != nullptr, ErrorCode::failed_precondition, "[strategy.", call,
               "] expected a replica context, got cross-replica context of '",
               get_strategy().name(), "'; call it inside run()");
  variable::ReplicaCount::note_scaled();
  return *replica;
}

void check_size(std::int64_t size) {
  COHORT_CHECK(size > 0, ErrorCode::invalid_argument,
               "[strategy.average_loss] expected a global batch of at least one example, got ",
               size, "; skip a step without data");
}

// The right number can be that of one replica only where all others have no rows.
void look_at_given_size(std::int64_t size, std::int64_t rows, const ReplicaContext& replica) {
  if (size != rows || replica.num_replicas_in_sync() == 1) return;
  if (!internal::StrategyAccess::is_first_wrong_size(replica.strategy())) return;
  log_warn("[strategy.average_loss] got a global_batch_size of ", size,
           ", which is the number of one replica's rows; the gradients of the ",
           replica.num_replicas_in_sync(),
           " replicas are added, so each row counts too much, unless the others have none. Give "
           "the number of the rows of all replicas, or leave it out");
}

// The sum over all replicas, which make this call together.
std::int64_t total(const ReplicaContext& replica, std::int64_t own) {
  if (replica.num_replicas_in_sync() == 1) return own;  // also in a trace, which reads no tensor
  const at::Tensor rows = at::scalar_tensor(own, at::kLong);
  return internal::call_together(replica, {.made_by = "average_loss"}, Nest(rows))
      .tensor()
      .item<std::int64_t>();
}

// The sum of a replica's losses, divided as the options say.
at::Tensor divided(const at::Tensor& sum, const ReplicaContext& replica, std::int64_t examples,
                   const AverageLossOptions& options) {
  if (options.reduction == GradientReduction::sum) return sum;
  if (options.reduction == GradientReduction::mean_of_means)
    return sum / (std::max<std::int64_t>(examples, 1) * replica.num_replicas_in_sync());
  internal::ReplicaTrace* const trace = internal::ReplicaTrace::current();
  if (trace != nullptr && replica.num_replicas_in_sync() > 1 && !options.global_batch_size)
    return sum / internal::traced_sum(*trace, "average_loss", examples, check_size);
  const std::int64_t size =
      options.global_batch_size ? *options.global_batch_size : total(replica, examples);
  check_size(size);
  if (options.global_batch_size) look_at_given_size(size, examples, replica);
  return sum / size;
}

// The weights in a shape that broadcasts to that of the losses. A column of weights, [n, 1], would
// make a matrix of the losses [n], so the one is squeezed; the other way round it is added
// (tf.nn.compute_average_loss).
at::Tensor fitting(const at::Tensor& weights, const at::Tensor& losses) {
  at::Tensor fitted = weights;
  if (weights.dim() == losses.dim() + 1 && weights.size(-1) == 1) fitted = weights.squeeze(-1);
  if (losses.dim() == weights.dim() + 1 && losses.size(-1) == 1) fitted = weights.unsqueeze(-1);
  bool fits = fitted.dim() <= losses.dim();
  for (std::int64_t i = 1; fits && i <= fitted.dim(); ++i)
    fits = fitted.size(-i) == 1 || fitted.size(-i) == losses.size(-i);
  COHORT_CHECK(fits, ErrorCode::invalid_argument,
               "[strategy.average_loss] expected weights of a shape that broadcasts to that of the "
               "losses, ",
               TensorSpec::of(losses).to_string(), ", got ", TensorSpec::of(weights).to_string(),
               "; give a weight for each example");
  return fitted;
}

}  // namespace

at::Tensor average_loss(const at::Tensor& losses, const AverageLossOptions& options) {
  ReplicaContext& replica = replica_of("average_loss");
  COHORT_CHECK(losses.defined() && losses.dim() > 0, ErrorCode::invalid_argument,
               "[strategy.average_loss] expected a loss of each example, got ",
               losses.defined() ? TensorSpec::of(losses).to_string() : "an undefined tensor",
               "; use Reduction::None (torch::kNone) in the loss function");
  COHORT_CHECK(losses.is_floating_point(), ErrorCode::invalid_argument,
               "[strategy.average_loss] expected floating-point losses, got ",
               TensorSpec::of(losses).to_string());
  COHORT_CHECK(
      !options.global_batch_size || options.reduction == GradientReduction::mean_over_global_batch,
      ErrorCode::invalid_argument,
      "[strategy.average_loss] expected a global_batch_size only with the reduction "
      "mean_over_global_batch, got ",
      *options.global_batch_size, " with another one; leave it out");
  COHORT_CHECK(!internal::is_in_gradient_part() || options.global_batch_size ||
                   options.reduction == GradientReduction::sum,
               ErrorCode::failed_precondition,
               "[strategy.average_loss] expected a global_batch_size inside gradients_in_parts(), "
               "where no part knows the size of the whole batch; give the number of examples of "
               "all parts of all replicas, with the reduction mean_over_global_batch, or take sum");
  const at::Tensor weighted =
      options.weights.defined() ? losses * fitting(options.weights, losses) : losses;
  return divided(weighted.sum(), replica, losses.size(0), options);
}

at::Tensor scale_regularization_loss(const at::Tensor& loss) {
  return loss.sum() / replica_of("scale_regularization_loss").num_replicas_in_sync();
}

}  // namespace cohort
