// SPDX-License-Identifier: Apache-2.0
#include "cohort/strategy/replica_context.h"

#include <ATen/core/TensorBody.h>

#include "cohort/strategy/replica_collective.h"

namespace cohort {
namespace {

using internal::CollectiveCall;

CollectiveCall reduction(ReduceOp op, const CommunicationOptions& options) {
  options.check();
  return {.kind = CollectiveCall::Kind::reduce, .op = op, .timeout = options.timeout};
}

CollectiveCall concatenation(std::int64_t axis, const CommunicationOptions& options) {
  options.check();
  return {.kind = CollectiveCall::Kind::gather, .axis = axis, .timeout = options.timeout};
}

}  // namespace

Nest ReplicaContext::all_reduce(ReduceOpOrName op, const Nest& value,
                                const CommunicationOptions& options) const {
  return internal::call_together(*this, reduction(op, options), value);
}

at::Tensor ReplicaContext::all_reduce(ReduceOpOrName op, const at::Tensor& value,
                                      const CommunicationOptions& options) const {
  return all_reduce(op, Nest(value), options).tensor();
}

at::Tensor ReplicaContext::all_reduce(ReduceOpOrName op, const Variable& value,
                                      const CommunicationOptions& options) const {
  check_is_current("all_reduce");
  return all_reduce(op, value.tensor(), options);
}

Nest ReplicaContext::all_gather(const Nest& value, std::int64_t axis,
                                const CommunicationOptions& options) const {
  return internal::call_together(*this, concatenation(axis, options), value);
}

at::Tensor ReplicaContext::all_gather(const at::Tensor& value, std::int64_t axis,
                                      const CommunicationOptions& options) const {
  return all_gather(Nest(value), axis, options).tensor();
}

at::Tensor ReplicaContext::all_gather(const Variable& value, std::int64_t axis,
                                      const CommunicationOptions& options) const {
  check_is_current("all_gather");
  return all_gather(value.tensor(), axis, options);
}

}  // namespace cohort
