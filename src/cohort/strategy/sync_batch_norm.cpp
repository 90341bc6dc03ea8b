// SPDX-License-Identifier: Apache-2.0
#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/TensorBody.h>
#include <ATen/ops/addcmul.h>
#include <ATen/ops/batch_norm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/scalar_tensor.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <string>

#include "cohort/core/error.h"
#include "cohort/core/tensor_spec.h"
#include "cohort/strategy/replica_collective.h"
#include "cohort/strategy/replica_context.h"
#include "cohort/strategy/replica_trace.h"
#include "cohort/strategy/replicated.h"
#include "cohort/strategy/strategy.h"

namespace cohort::internal {
namespace {

// `count`: of the values for each channel, of which the variance is computed.
void check_count(std::int64_t count) {
  COHORT_CHECK(count > 1, ErrorCode::invalid_argument,
               "[strategy.SyncBatchNorm] expected more than one value for each channel in the "
               "batches of all replicas together, got ",
               count, "; give the step a larger batch, or skip it");
}

// The mean and the variance of each channel, over the rows of all replicas, in float64.
struct Statistics {
  at::Tensor mean;
  at::Tensor variance;
  at::Tensor count;  // of values for each channel; float64, one number
};

// One replica's values minus their own mean, and what it contributes to the statistics.
struct Centered {
  at::Tensor values;
  at::Tensor mean;          // float64 [channels]; of no values: 0
  at::Tensor contribution;  // [1 + 2 * channels]: count, means and variances
  std::int64_t count = 0;   // of values for each channel
};

Centered centered(const at::Tensor& x) {
  std::vector<std::int64_t> dimensions;
  std::int64_t count = 1;
  for (std::int64_t i = 0; i < x.dim(); ++i) {
    if (i == 1) continue;
    dimensions.push_back(i);
    count *= x.size(i);
  }
  const auto divisor = static_cast<double>(std::max<std::int64_t>(count, 1));
  const at::Tensor mean = x.sum(dimensions, /*keepdim=*/true) / divisor;
  const at::Tensor values = x - mean;
  const at::Tensor variance = values.square().sum(dimensions) / divisor;
  const at::Tensor wide_mean = mean.flatten().to(at::kDouble);
  const at::Tensor own_count = at::full({1}, count, x.options().dtype(at::kDouble));
  return {values, wide_mean, at::cat({own_count, wide_mean, variance.to(at::kDouble)}), count};
}

// Combines the variances around the replicas' own means to that around the mean of all: a sum of
// squares less the square of the sum would lose the digits that both have in common.
Statistics statistics_of_all(const at::Tensor& contributions, std::int64_t channels) {
  const at::Tensor counts = contributions.narrow(1, 0, 1);
  const at::Tensor means = contributions.narrow(1, 1, channels);
  const at::Tensor variances = contributions.narrow(1, 1 + channels, channels);
  const at::Tensor total = counts.sum();
  const at::Tensor mean = (counts * means).sum(0) / total;
  const at::Tensor variance = (counts * (variances + (means - mean).square())).sum(0) / total;
  return {mean, variance, total};
}

void update_running_statistics(const BatchNormCall& call, const Statistics& statistics) {
  const c10::NoGradGuard no_grad;
  call.num_batches_tracked.add_(1);
  // Not read on the host, which no trace could record.
  const at::Tensor momentum = call.momentum ? at::scalar_tensor(*call.momentum, at::kDouble)
                                            : call.num_batches_tracked.to(at::kDouble).reciprocal();
  const auto update = [&](const at::Tensor& running, const at::Tensor& value) {
    running.copy_(running.to(at::kDouble) * (1 - momentum) + value * momentum);
  };
  const at::Tensor& count = statistics.count;
  update(call.running_mean, statistics.mean);
  update(call.running_var, statistics.variance * (count / (count - 1)));
}

bool is_one_of_several_replicas() {
  const ReplicaContext* const replica = get_replica_context();
  return replica != nullptr && replica->num_replicas_in_sync() > 1;
}

// Computes as LibTorch's layer does.
at::Tensor normalized_alone(const BatchNormCall& call) {
  if (call.uses_batch_statistics) check_count(call.input.numel() / call.input.size(1));
  double momentum = call.momentum.value_or(0);
  if (call.updates_running_statistics) {
    call.num_batches_tracked.add_(1);
    if (!call.momentum) momentum = 1.0 / call.num_batches_tracked.item<double>();
  }
  return at::batch_norm(call.input, call.weight, call.bias, call.running_mean, call.running_var,
                        call.uses_batch_statistics, momentum, call.epsilon,
                        at::globalContext().userEnabledCuDNN());
}

at::Tensor normalized_together(const BatchNormCall& call) {
  const at::Tensor& input = call.input;
  const at::ScalarType type = input.scalar_type();
  const bool is_half = type == at::kHalf || type == at::kBFloat16;
  const at::Tensor x = is_half ? input.to(at::kFloat) : input;
  const Centered own = centered(x);
  const CollectiveCall gather{.kind = CollectiveCall::Kind::gather,
                              .made_by = "SyncBatchNorm::forward"};
  const at::Tensor all =
      call_together(*get_replica_context(), gather, Nest(own.contribution.unsqueeze(0))).tensor();
  const Statistics statistics = statistics_of_all(all, input.size(1));
  if (ReplicaTrace* const trace = ReplicaTrace::current()) {
    traced_sum(*trace, "SyncBatchNorm", own.count, check_count);
  } else {
    check_count(static_cast<std::int64_t>(statistics.count.item<double>()));
  }
  if (call.updates_running_statistics) update_running_statistics(call, statistics);

  // (x - mean) * scale + bias, from the values minus the replica's own mean.
  at::Tensor scale = (statistics.variance + call.epsilon).rsqrt();
  if (call.weight.defined()) scale = scale * call.weight;
  at::Tensor shift = (own.mean - statistics.mean) * scale;
  if (call.bias.defined()) shift = shift + call.bias;
  std::vector<std::int64_t> shape(static_cast<std::size_t>(x.dim()), 1);
  shape[1] = input.size(1);
  const auto of_each_value = [&](const at::Tensor& of_channel) {
    return of_channel.to(x.scalar_type()).view(shape);
  };
  return at::addcmul(of_each_value(shift), own.values, of_each_value(scale)).to(type);
}

}  // namespace

void check_batch_norm_input(const at::Tensor& input, std::size_t dimensions,
                            std::int64_t channels) {
  const auto rank = static_cast<std::int64_t>(dimensions) + 2;
  const bool has_rank = input.dim() == rank || (dimensions == 1 && input.dim() == 2);
  COHORT_CHECK(has_rank && input.is_floating_point() && input.size(1) == channels && channels > 0,
               ErrorCode::invalid_argument,
               "[strategy.SyncBatchNorm] expected a floating-point input with ",
               dimensions == 1 ? "2 or 3" : std::to_string(rank), " dimensions and ", channels,
               " channels in dimension 1, got ", TensorSpec::of(input).to_string());
}

at::Tensor batch_normalized(const BatchNormCall& call) {
  return call.uses_batch_statistics && is_one_of_several_replicas() ? normalized_together(call)
                                                                    : normalized_alone(call);
}

}  // namespace cohort::internal
