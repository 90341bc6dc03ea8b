// SPDX-License-Identifier: Apache-2.0
#include "cohort/collective/group.h"

#include <optional>
#include <span>
#include <utility>

#include "cohort/collective/groups/call.h"
#include "cohort/collective/groups/caller.h"
#include "cohort/core/error_bytes.h"

namespace cohort::collective {
namespace {

// An error of the arguments is kept in the call, and thrown by perform() on all members.
void add_all(Call& call, std::span<const at::Tensor> tensors) {
  try {
    COHORT_CHECK(call.root >= 0 && call.root < call.size, ErrorCode::invalid_argument,
                 prefix(call.kind), "a root in [0, ", call.size, "), got ", call.root,
                 "; pass the rank of a member");
    call.parts.reserve(tensors.size());
    for (const at::Tensor& tensor : tensors) call.add(tensor);
  } catch (...) {
    call.refusal = current_error();
    call.parts.clear();
    call.payload_bytes = 0;
  }
}

}  // namespace

void Group::all_reduce(std::span<const at::Tensor> tensors, ReduceOp op, Deadline deadline) {
  Call call{.kind = CallKind::all_reduce, .op = op, .rank = rank(), .size = size()};
  add_all(call, tensors);
  perform(call, deadline);
  call.finish();
}

void Group::reduce(std::span<const at::Tensor> tensors, ReduceOp op, int root, Deadline deadline) {
  Call call{.kind = CallKind::reduce, .op = op, .root = root, .rank = rank(), .size = size()};
  add_all(call, tensors);
  perform(call, deadline);
  call.finish();
}

void Group::broadcast(std::span<const at::Tensor> tensors, int root, Deadline deadline) {
  Call call{.kind = CallKind::broadcast, .root = root, .rank = rank(), .size = size()};
  add_all(call, tensors);
  perform(call, deadline);
  call.finish();
}

at::Tensor Group::all_gather(const at::Tensor& tensor, std::int64_t axis, Deadline deadline) {
  Call call{.kind = CallKind::all_gather, .axis = axis, .rank = rank(), .size = size()};
  add_all(call, {&tensor, 1});
  perform(call, deadline);
  return call.result;
}

at::Tensor Group::reduce_scatter(const at::Tensor& tensor, ReduceOp op, Deadline deadline) {
  Call call{.kind = CallKind::reduce_scatter, .op = op, .rank = rank(), .size = size()};
  add_all(call, {&tensor, 1});
  perform(call, deadline);
  return call.result;
}

void Group::barrier(Deadline deadline) {
  Call call{.kind = CallKind::barrier, .rank = rank(), .size = size()};
  perform(call, deadline);
}

std::vector<Bytes> exchange_result(Group& group, const std::function<Bytes()>& make,
                                   std::string_view what, Deadline deadline) {
  ByteWriter mine;
  try {
    const Bytes made = make();
    write_optional_error(mine, std::nullopt);
    mine.blob(made);
  } catch (...) {
    write_optional_error(mine, current_error());
  }
  std::vector<Bytes> all = group.exchange(mine.take(), what, deadline);
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    ByteReader reader(all[rank], what);
    if (std::optional<Error> error = read_optional_error(reader))
      throw std::move(*error).at(group.member_name(static_cast<int>(rank)));
    const std::span<const std::byte> made = reader.blob();
    all[rank] = Bytes(made.begin(), made.end());
  }
  return all;
}

}  // namespace cohort::collective
