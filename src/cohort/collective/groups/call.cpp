// SPDX-License-Identifier: Apache-2.0
#include "cohort/collective/groups/call.h"

#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>
#include <c10/util/accumulate.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "cohort/collective/reduce_elements.h"
#include "cohort/core/random.h"

namespace cohort::collective {
namespace {

constexpr std::int64_t kPartAlignment = 16;  // of the largest element, a complex128

// Whether the values lie in row-major order, as they are read.
bool is_plain(const at::Tensor& tensor) {
  return tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg();
}

// Whether several elements share a place in memory, as in the result of expand().
bool repeats_elements(const at::Tensor& tensor) {
  const c10::IntArrayRef sizes = tensor.sizes();
  const c10::IntArrayRef strides = tensor.strides();
  for (std::size_t d = 0; d < sizes.size(); ++d) {
    if (strides[d] == 0 && sizes[d] > 1) return true;
  }
  return false;
}

}  // namespace

bool Call::is_reduction() const {
  return kind == CallKind::all_reduce || kind == CallKind::reduce ||
         kind == CallKind::reduce_scatter;
}

bool Call::writes_tensors() const {
  switch (kind) {
    case CallKind::all_reduce:
      return true;
    case CallKind::reduce:
      return rank == root;
    case CallKind::broadcast:
      return rank != root;
    default:
      return false;
  }
}

void Call::check(const at::Tensor& tensor) const {
  const auto refuse = [&](std::string_view expected, const auto& got, std::string_view remedy) {
    internal::throw_error(ErrorCode::invalid_argument, "[collective.", name_of(kind), "] expected ",
                          expected, ", got ", got, " (tensor ", parts.size(), "); ", remedy);
  };
  if (!tensor.defined()) refuse("tensors", "an undefined one", "pass zeros instead");
  const at::ScalarType dtype = tensor.scalar_type();
  if (dtype == kString) refuse("numbers", "strings", "exchange() takes bytes");
  if (!tensor.device().is_cpu())
    refuse("tensors on the CPU", tensor.device(), "move it there first");
  if (tensor.layout() != at::kStrided)
    refuse("dense tensors", tensor.layout(), "make it dense first, with to_dense()");
  if (is_reduction() && !has_sum(dtype))
    refuse("numbers", dtype_name(dtype), "convert it first, for example with to(at::kLong)");
  if (is_reduction() && op != ReduceOp::sum && op != ReduceOp::mean)
    refuse("ReduceOp::sum or mean", cohort::name_of(op),
           "Strategy::reduce() and ReplicaContext::all_reduce() take it");
  if (is_reduction() && op == ReduceOp::mean && !has_mean(dtype)) {
    const bool is_wide = dtype == at::kInt || dtype == at::kLong;
    refuse(
        "numbers whose mean has the same dtype", dtype_name(dtype),
        is_wide ? "convert it first with to(at::kDouble)" : "convert it first with to(at::kFloat)");
  }
  if (writes_tensors() && tensor.numel() > 0 && repeats_elements(tensor))
    refuse("tensors whose elements have memory of their own", tensor.strides(),
           "pass a copy, as contiguous() makes it");
  const bool has_axis = kind == CallKind::reduce_scatter || kind == CallKind::all_gather;
  if (has_axis && (axis < 0 || axis >= tensor.dim()))
    refuse("a tensor that has axis " + std::to_string(axis), TensorSpec::of(tensor),
           "add a dimension with unsqueeze(), or choose another axis");
}

void Call::add(const at::Tensor& tensor) {
  check(tensor);
  Part part{.tensor = &tensor, .dtype = tensor.scalar_type()};
  part.count = tensor.numel();
  part.bytes = part.count * static_cast<std::int64_t>(tensor.element_size());
  part.offset = payload_bytes;
  if (is_plain(tensor)) {
    part.data = static_cast<std::byte*>(tensor.data_ptr());
  } else {
    const c10::NoGradGuard no_grad;
    part.copy = at::empty(tensor.sizes(), tensor.scalar_type());
    if (reads_tensors()) part.copy.copy_(tensor);
    part.data = static_cast<std::byte*>(part.copy.data_ptr());
  }
  payload_bytes = rounded_up(part.offset + part.bytes, kPartAlignment);
  if (kind == CallKind::reduce_scatter) {
    std::vector<std::int64_t> sizes = tensor.sizes().vec();
    const auto [first, last] = rows_of(sizes.front(), rank);
    sizes.front() = last - first;
    result = at::empty(sizes, tensor.scalar_type());
  }
  parts.push_back(std::move(part));
}

std::uint64_t Call::fingerprint() const {
  std::uint64_t hash = mix_seed(static_cast<std::uint64_t>(kind) + 1, parts.size());
  hash = mix_seed(hash, static_cast<std::uint64_t>(op));
  hash = mix_seed(hash, static_cast<std::uint64_t>(root));
  hash = mix_seed(hash, static_cast<std::uint64_t>(axis));
  for (const Part& part : parts) {
    hash = mix_seed(hash, static_cast<std::uint64_t>(part.dtype));
    const c10::IntArrayRef sizes = part.tensor->sizes();
    hash = mix_seed(hash, sizes.size());
    for (std::size_t d = 0; d < sizes.size(); ++d) {
      const bool may_differ = kind == CallKind::all_gather && static_cast<std::int64_t>(d) == axis;
      if (!may_differ) hash = mix_seed(hash, static_cast<std::uint64_t>(sizes[d]));
    }
  }
  return hash;
}

CallSpec Call::spec() const {
  CallSpec spec{.kind = kind, .op = op, .root = root, .axis = axis, .refusal = refusal};
  for (const Part& part : parts) spec.tensors.push_back(TensorSpec::of(*part.tensor));
  return spec;
}

void Call::write_payload(std::byte* to) const noexcept {
  for (const Part& part : parts) {
    if (part.bytes > 0)
      std::memcpy(to + part.offset, part.data, static_cast<std::size_t>(part.bytes));
  }
}

void Call::reduce(const Part& part, std::span<const std::byte* const> inputs,
                  std::span<std::byte* const> outputs, std::int64_t bytes) const {
  c10::SmallVector<const std::byte*, 8> in_tree;
  if (tree != nullptr) {
    in_tree.resize(static_cast<std::size_t>(tree->size), nullptr);
    for (std::size_t i = 0; i < inputs.size(); ++i)
      in_tree[static_cast<std::size_t>(tree->places[i])] = inputs[i];
    inputs = in_tree;
  }
  const auto each = static_cast<std::int64_t>(c10::elementSize(part.dtype));
  reduce_elements(
      {.dtype = part.dtype, .op = op, .inputs = inputs, .outputs = outputs, .count = bytes / each});
}

std::pair<std::int64_t, std::int64_t> Call::rows_of(std::int64_t rows, int of) const {
  const std::int64_t each = rows / size;
  const std::int64_t longer = rows % size;
  const std::int64_t first = of * each + std::min<std::int64_t>(of, longer);
  return {first, first + each + (of < longer ? 1 : 0)};
}

void Call::allocate_gathered(std::span<const std::int64_t> sizes) {
  std::vector<std::int64_t> of_result = parts.front().tensor->sizes().vec();
  of_result[static_cast<std::size_t>(axis)] =
      std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0});
  result = at::empty(of_result, parts.front().dtype);
}

void Call::gather(const std::byte* from, std::int64_t before, std::int64_t length) noexcept {
  if (length == 0 || result.numel() == 0) return;
  const std::int64_t outer = c10::numelements_to_dim(static_cast<int>(axis), result.sizes());
  const std::int64_t row_bytes =
      static_cast<std::int64_t>(result.nbytes()) / (outer * result.size(axis));
  auto* to = static_cast<std::byte*>(result.data_ptr()) + before * row_bytes;
  for (std::int64_t i = 0; i < outer; ++i) {
    std::memcpy(to, from, static_cast<std::size_t>(length * row_bytes));
    from += length * row_bytes;
    to += result.size(axis) * row_bytes;
  }
}

void Call::combine(std::span<const std::byte* const> payloads) noexcept {
  if (kind == CallKind::barrier || (kind != CallKind::reduce_scatter && !writes_tensors())) return;
  c10::SmallVector<const std::byte*, 8> inputs(payloads.size());
  for (const Part& part : parts) {
    std::int64_t first = part.offset;
    std::byte* output = part.data;
    std::int64_t bytes = part.bytes;
    if (kind == CallKind::broadcast) {
      if (bytes > 0)
        std::memcpy(output, payloads[static_cast<std::size_t>(root)] + first,
                    static_cast<std::size_t>(bytes));
      continue;
    }
    if (kind == CallKind::reduce_scatter && bytes > 0) {
      const std::int64_t rows = part.tensor->size(0);
      first += rows_of(rows, rank).first * (part.bytes / rows);
      output = static_cast<std::byte*>(result.data_ptr());
      bytes = static_cast<std::int64_t>(result.nbytes());
    }
    for (std::size_t i = 0; i < inputs.size(); ++i) inputs[i] = payloads[i] + first;
    reduce(part, inputs, {&output, 1}, bytes);
  }
}

void Call::finish() {
  if (!writes_tensors()) return;
  for (Part& part : parts) {
    if (part.copy.defined()) {
      const c10::NoGradGuard no_grad;
      part.tensor->copy_(part.copy);
    } else if (!part.tensor->is_inference()) {
      // Else a backward pass that needs the old values would take the new ones.
      part.tensor->unsafeGetTensorImpl()->bump_version();
    }
  }
}

}  // namespace cohort::collective
