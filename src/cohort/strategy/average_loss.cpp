// SPDX-License-Identifier: Apache-2.0
#include <ATen/TensorOperators.h>
#include <ATen/ops/scalar_tensor.h>

#include "cohort/core/error.h"
#include "cohort/core/tensor_spec.h"
#include "cohort/strategy/strategy.h"

namespace cohort {
namespace {

ReplicaContext& replica_of(std::string_view call) {
  ReplicaContext* replica = get_replica_context();
  COHORT_CHECK(replica != nullptr, ErrorCode::failed_precondition, "[strategy.", call,
               "] expected a replica context, got cross-replica context of '",
               get_strategy().name(), "'; call it inside run()");
  return *replica;
}

// The sum over all replicas, which make this call together.
std::int64_t total(const ReplicaContext& replica, std::int64_t own) {
  if (replica.num_replicas_in_sync() == 1) return own;  // also in a trace, which reads no tensor
  return replica.all_reduce(ReduceOp::sum, at::scalar_tensor(own, at::kLong)).item<std::int64_t>();
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
  const std::int64_t size =
      options.global_batch_size ? *options.global_batch_size : total(replica, losses.size(0));
  COHORT_CHECK(size > 0, ErrorCode::invalid_argument,
               "[strategy.average_loss] expected a global batch of at least one example, got ",
               size, "; skip a step without data");
  const at::Tensor weighted = options.weights.defined() ? losses * options.weights : losses;
  return weighted.sum() / size;
}

at::Tensor scale_regularization_loss(const at::Tensor& loss) {
  return loss.sum() / replica_of("scale_regularization_loss").num_replicas_in_sync();
}

}  // namespace cohort
