// SPDX-License-Identifier: Apache-2.0
// One collective operation as one member calls it, and how members find out that they call
// different ones.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "cohort/collective/group.h"
#include "cohort/core/bytes.h"
#include "cohort/core/error.h"
#include "cohort/core/tensor_spec.h"

namespace cohort::collective {

enum class CallKind : std::uint8_t {
  exchange = 0,
  all_reduce = 1,
  reduce = 2,
  broadcast = 3,
  all_gather = 4,
  reduce_scatter = 5,
  barrier = 6,
};
// A message with a higher kind is not understood.
inline constexpr CallKind kLastCallKind = CallKind::barrier;

std::string_view name_of(CallKind kind);

// All members must agree on these; used for messages between processes and for texts of errors.
struct CallSpec {
  CallKind kind = CallKind::barrier;
  ReduceOp op = ReduceOp::sum;
  int root = 0;
  std::int64_t axis = 0;
  std::vector<TensorSpec> tensors = {};
  std::optional<Error> refusal = {};  // why this member's arguments were refused
};

Bytes encode(const CallSpec& spec);
// Throws data_loss.
CallSpec decode_call_spec(std::span<const std::byte> bytes);

// The error that all members throw if their calls differ or the arguments of one were refused;
// nullopt if they agree. `all` is in the order of ranks.
std::optional<Error> disagreement(std::span<const CallSpec> all, const Group& group,
                                  std::uint64_t call_number);

// Names the sums that the members of a group add, if each brings the sum of a part of a larger
// group.
struct SumTree {
  int size = 0;                  // of the larger group
  std::vector<int> places = {};  // in it, of each member: the first of those whose sum it brings
};

// A tensor of a call: contiguous memory, either the tensor's own or a copy.
struct Part {
  const at::Tensor* tensor = nullptr;
  at::Tensor copy = {};  // defined if the tensor itself is not contiguous
  std::byte* data = nullptr;
  std::int64_t count = 0;  // elements
  std::int64_t bytes = 0;
  // The place of the part in the payload. Parts lie one after the other, aligned for all types.
  std::int64_t offset = 0;
  at::ScalarType dtype = at::ScalarType::Float;
};

// Bytes of the payload of a call, or of a part of it.
struct Range {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int64_t length() const { return end - begin; }
};

// Lives on the stack of the member that makes the call, and refers to the caller's tensors. Used
// only from that thread, but for what a backend publishes to the other members.
struct Call {
  CallKind kind = CallKind::barrier;
  ReduceOp op = ReduceOp::sum;
  int root = 0;
  std::int64_t axis = 0;  // of all_gather
  int rank = 0;           // of the member
  int size = 1;           // of the group
  c10::SmallVector<Part, 2> parts = {};
  std::int64_t payload_bytes = 0;  // all parts with the gaps between them
  at::Tensor result = {};          // of all_gather and reduce_scatter
  const SumTree* tree = nullptr;   // of reductions; nullptr: each member brings its own values
  std::optional<Error> refusal = {};

  bool is_reduction() const;
  // Whether this member's tensors are replaced by results.
  bool writes_tensors() const;
  // Whether this member's tensors are inputs.
  bool reads_tensors() const { return kind != CallKind::broadcast || rank == root; }
  // Adds an argument; throws invalid_argument if it cannot take part.
  void add(const at::Tensor& tensor);
  // Equal for calls that agree; different calls have different ones but for a chance of 2^-64.
  std::uint64_t fingerprint() const;
  CallSpec spec() const;
  void write_payload(std::byte* to) const noexcept;
  // Reduces so many bytes of a part. `inputs`: those of each member; `outputs`: as of Reduction.
  void reduce(const Part& part, std::span<const std::byte* const> inputs,
              std::span<std::byte* const> outputs, std::int64_t bytes) const;
  // The rows [first, last) that member `of` gets of reduce_scatter's argument of `rows` rows.
  std::pair<std::int64_t, std::int64_t> rows_of(std::int64_t rows, int of) const;
  // Makes all_gather's result, from the sizes of all members' tensors along the axis.
  void allocate_gathered(std::span<const std::int64_t> sizes);
  // Copies one member's tensor to its place in all_gather's result: `before` is the size of those
  // before it along the axis, `length` its own.
  void gather(const std::byte* from, std::int64_t before, std::int64_t length) noexcept;
  // Computes this member's results from the payloads of all members, which agree with this one; of
  // all operations but all_gather.
  void combine(std::span<const std::byte* const> payloads) noexcept;
  // Copies results to tensors that are not contiguous, and tells autograd about what was written.
  void finish();

 private:
  void check(const at::Tensor& tensor) const;
};

// The smallest multiple of `step` that is not smaller.
inline std::int64_t rounded_up(std::int64_t bytes, std::int64_t step) {
  return (bytes + step - 1) / step * step;
}

// Calls run(part, from, to) for each part that has bytes in this range of the payload; from and to
// are bytes of the part.
template <class Run>
void for_parts(const Call& call, const Range& range, const Run& run) {
  const Part* part =
      std::upper_bound(call.parts.begin(), call.parts.end(), range.begin,
                       [](std::int64_t at, const Part& other) { return at < other.offset; });
  if (part != call.parts.begin()) --part;
  for (; part != call.parts.end() && part->offset < range.end; ++part) {
    const std::int64_t from = std::max<std::int64_t>(0, range.begin - part->offset);
    const std::int64_t to = std::min(part->bytes, range.end - part->offset);
    if (from < to) run(*part, from, to);
  }
}

}  // namespace cohort::collective
