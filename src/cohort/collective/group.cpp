// SPDX-License-Identifier: Apache-2.0
#include "cohort/collective/group.h"

#include "cohort/collective/groups/call.h"
#include "cohort/core/error.h"

namespace cohort::collective {
namespace {

// An error of these arguments is kept here and thrown by perform(), on all members.
template <class Add>
void collect(Call& call, const Add& add_arguments) {
  try {
    add_arguments();
  } catch (...) {
    call.refusal = current_error();
    call.parts.clear();
    call.payload_bytes = 0;
  }
}

void add_all(Call& call, std::span<const at::Tensor> tensors) {
  call.parts.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors) call.add(tensor);
}

void check_root(const Call& call) {
  COHORT_CHECK(call.root >= 0 && call.root < call.size, ErrorCode::invalid_argument, "[collective.",
               name_of(call.kind), "] expected a root in [0, ", call.size, "), got ", call.root,
               "; pass the rank of a member");
}

}  // namespace

void Group::all_reduce(std::span<const at::Tensor> tensors, ReduceOp op, Deadline deadline) {
  Call call{.kind = CallKind::all_reduce, .op = op, .rank = rank(), .size = size()};
  collect(call, [&] { add_all(call, tensors); });
  perform(call, deadline);
  call.finish();
}

void Group::reduce(std::span<const at::Tensor> tensors, ReduceOp op, int root, Deadline deadline) {
  Call call{.kind = CallKind::reduce, .op = op, .root = root, .rank = rank(), .size = size()};
  collect(call, [&] {
    check_root(call);
    add_all(call, tensors);
  });
  perform(call, deadline);
  call.finish();
}

void Group::broadcast(std::span<const at::Tensor> tensors, int root, Deadline deadline) {
  Call call{.kind = CallKind::broadcast, .root = root, .rank = rank(), .size = size()};
  collect(call, [&] {
    check_root(call);
    add_all(call, tensors);
  });
  perform(call, deadline);
  call.finish();
}

at::Tensor Group::all_gather(const at::Tensor& tensor, std::int64_t axis, Deadline deadline) {
  Call call{.kind = CallKind::all_gather, .axis = axis, .rank = rank(), .size = size()};
  collect(call, [&] { call.add(tensor); });
  perform(call, deadline);
  return call.result;
}

at::Tensor Group::reduce_scatter(const at::Tensor& tensor, ReduceOp op, Deadline deadline) {
  Call call{.kind = CallKind::reduce_scatter, .op = op, .rank = rank(), .size = size()};
  collect(call, [&] { call.add(tensor); });
  perform(call, deadline);
  return call.result;
}

void Group::barrier(Deadline deadline) {
  Call call{.kind = CallKind::barrier, .rank = rank(), .size = size()};
  perform(call, deadline);
}

}  // namespace cohort::collective
