// SPDX-License-Identifier: Apache-2.0
#include "cohort/variable/row_gradient.h"

#include <ATen/SparseTensorImpl.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/TensorBody.h>
#include <ATen/ops/_sparse_coo_tensor_unsafe.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <array>
#include <bit>
#include <functional>
#include <iterator>
#include <numeric>
#include <vector>

#include "cohort/core/error.h"
#include "cohort/core/tensor_spec.h"
#include "cohort/function/trace.h"
#include "cohort/variable/row_loop.h"
#include "cohort/variable/rows.h"

namespace cohort::variable {
namespace {

at::Tensor zero_rows(std::size_t count, const at::Tensor& like) {
  std::vector<std::int64_t> sizes = like.sizes().vec();
  sizes[0] = static_cast<std::int64_t>(count);
  return at::zeros(sizes, at::TensorOptions(like.scalar_type()));
}

// Adds row from[i] of `values` to row to[i] of `sums`, for one i after the other.
template <class T>
void add_rows_to(const at::Tensor& sums, std::span<const std::size_t> to, const at::Tensor& values,
                 std::span<const std::size_t> from) {
  if (to.empty()) return;
  const auto width = static_cast<std::size_t>(values.numel() / values.size(0));
  T* const out = sums.data_ptr<T>();
  const T* const in = values.data_ptr<T>();
  const auto row_of = [&](std::size_t i) {
    return reinterpret_cast<const std::byte*>(in + from[i] * width);
  };
  for_each_row(to.size(), width * sizeof(T), row_of, [&](const std::byte*, std::size_t i) {
    T* const sum = out + to[i] * width;
    const T* const row = in + from[i] * width;
    for (std::size_t k = 0; k < width; ++k) sum[k] += row[k];
  });
}

void add_rows_to(const at::Tensor& sums, std::span<const std::size_t> to, const at::Tensor& values,
                 std::span<const std::size_t> from) {
  values.scalar_type() == at::kFloat ? add_rows_to<float>(sums, to, values, from)
                                     : add_rows_to<double>(sums, to, values, from);
}

// Other dtypes and devices are left to LibTorch, which adds the rows in an order of its own.
bool is_added_here(const at::Tensor& values) {
  return values.is_cpu() &&
         (values.scalar_type() == at::kFloat || values.scalar_type() == at::kDouble);
}

struct PlacedId {
  std::int64_t id;
  std::size_t place;  // among all
};
// Orders by one byte of the id; equal ones stay in their order.
void sort_by_byte(std::vector<PlacedId>& ids, std::vector<PlacedId>& sorted, int shift) {
  constexpr std::uint64_t kSign = std::uint64_t{1} << 63;  // negative numbers come first
  const auto byte_of = [shift](const PlacedId& each) {
    return ((static_cast<std::uint64_t>(each.id) ^ kSign) >> shift) & 0xff;
  };
  std::array<std::size_t, 256> ends{};
  for (const PlacedId& each : ids) ++ends[byte_of(each)];
  std::exclusive_scan(ends.begin(), ends.end(), ends.begin(), std::size_t{0});
  for (const PlacedId& each : ids) sorted[ends[byte_of(each)]++] = each;
  ids.swap(sorted);
}

// In ascending order; equal ids stay in their order. Sorts by each byte in which some ids differ,
// from the lowest on: for thousands of ids several times faster than by comparisons.
std::vector<PlacedId> sorted_ids(std::span<const std::int64_t> all) {
  std::vector<PlacedId> ids(all.size());
  std::uint64_t differences = 0;
  for (std::size_t i = 0; i < all.size(); ++i) {
    ids[i] = {all[i], i};
    differences |= static_cast<std::uint64_t>(all[i] ^ all.front());
  }
  constexpr std::size_t kComparedMax = 128;
  if (all.size() <= kComparedMax) {
    std::ranges::sort(ids, {}, [](const PlacedId& each) { return std::pair(each.id, each.place); });
    return ids;
  }
  std::vector<PlacedId> other(all.size());
  for (int shift = 0; shift < 64; shift += 8)
    if (((differences >> shift) & 0xff) != 0) sort_by_byte(ids, other, shift);
  return ids;
}

std::size_t left_of_tree(std::size_t count) { return std::bit_floor(count - 1); }

}  // namespace

bool is_row_gradient(const at::Tensor& gradient) {
  return gradient.defined() && gradient.layout() == at::kSparse && gradient.sparse_dim() == 1 &&
         gradient.dense_dim() == gradient.dim() - 1;
}

GradientRows rows_of(const at::Tensor& gradient) {
  const auto* const sparse = static_cast<at::SparseTensorImpl*>(gradient.unsafeGetTensorImpl());
  return {sparse->indices(), sparse->values()};
}

at::Tensor row_gradient(const at::Tensor& ids, const at::Tensor& values, at::IntArrayRef sizes) {
  return at::_sparse_coo_tensor_unsafe(ids.unsqueeze(0), values, sizes);
}

at::Tensor summed_row_gradient(const at::Tensor& ids, const at::Tensor& values,
                               at::IntArrayRef sizes) {
  return row_gradient(ids, values, sizes)._coalesced_(true);
}

GradientRows sum_rows(const GradientRows& gradient) {
  if (!is_added_here(gradient.values)) return gradient;
  COHORT_ASSERT(gradient.ids.numel() == gradient.values.size(0));
  const at::Tensor ids = gradient.ids.contiguous();
  const at::Tensor values = gradient.values.detach().contiguous();
  const std::span<const std::int64_t> all = numbers_of(ids);
  std::vector<std::size_t> from(all.size()), to(all.size());
  std::vector<std::int64_t> rows;
  const std::vector<PlacedId> sorted = sorted_ids(all);
  for (std::size_t i = 0; i < sorted.size(); ++i) {
    if (rows.empty() || rows.back() != sorted[i].id) rows.push_back(sorted[i].id);
    from[i] = sorted[i].place;
    to[i] = rows.size() - 1;
  }
  const at::Tensor sums = zero_rows(rows.size(), values);
  add_rows_to(sums, to, values, from);
  return {tensor_of(rows).unsqueeze(0), sums};
}

at::Tensor sum_rows(const at::Tensor& gradient) {
  const at::Tensor plain = gradient.detach();
  if (plain.is_coalesced()) {
    const GradientRows rows = rows_of(plain);
    if (rows.values.is_contiguous() && rows.ids.is_contiguous()) return plain;
    return summed_row_gradient(rows.ids[0].contiguous(), rows.values.contiguous(), plain.sizes());
  }
  if (!is_added_here(rows_of(plain).values)) return sum_rows(plain.coalesce());
  const GradientRows sums = sum_rows(rows_of(plain));
  const auto ids = numbers_of(sums.ids);
  COHORT_CHECK(ids.empty() || (ids.front() >= 0 && ids.back() < plain.size(0)),
               ErrorCode::invalid_argument, "[variable.apply] expected rows in [0, ", plain.size(0),
               ") in a sparse gradient, got rows from ", ids.front(), " to ", ids.back());
  return summed_row_gradient(sums.ids.squeeze(0), sums.values, plain.sizes());
}

bool are_summed(const at::Tensor& ids) {
  if (ids.scalar_type() != at::kLong || !ids.is_contiguous()) return false;
  return std::ranges::adjacent_find(numbers_of(ids), std::greater_equal{}) == numbers_of(ids).end();
}

at::Tensor add_rows(const at::Tensor& left, const at::Tensor& right) {
  if (!is_added_here(rows_of(left).values)) return left.add(right.to(left.device())).coalesce();
  const GradientRows first = rows_of(left), second = rows_of(right);
  const at::Tensor first_ids = first.ids.contiguous(), second_ids = second.ids.contiguous();
  const auto a = numbers_of(first_ids), b = numbers_of(second_ids);
  std::vector<std::int64_t> rows;
  std::set_union(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(rows));
  const at::Tensor sums = zero_rows(rows.size(), first.values);
  const auto add = [&](std::span<const std::int64_t> ids, const at::Tensor& values) {
    std::vector<std::size_t> from(ids.size()), to;
    std::iota(from.begin(), from.end(), 0);
    auto row = rows.begin();
    for (const std::int64_t id : ids) {
      row = std::lower_bound(row, rows.end(), id);
      to.push_back(static_cast<std::size_t>(row - rows.begin()));
    }
    add_rows_to(sums, to, values.contiguous(), from);
  };
  add(a, first.values);
  add(b, second.values);
  return summed_row_gradient(tensor_of(rows), sums, left.sizes());
}

at::Tensor add_all_rows(std::span<const at::Tensor> gradients) {
  if (gradients.size() == 1) return gradients.front();
  const std::size_t left_size = left_of_tree(gradients.size());
  const at::Tensor left = add_all_rows(gradients.first(left_size));
  const at::Tensor right = add_all_rows(gradients.subspan(left_size));
  if (!left.defined()) return right;
  return right.defined() ? add_rows(left, right) : left;
}

at::Tensor dense_of(const at::Tensor& gradient) {
  const at::Tensor plain = gradient.detach();
  if (function::Trace::current() != nullptr) {  // the rows of another call are not these
    const bool may_be_one_number = plain.dim() == 0 || plain.numel() == plain.size(0);
    COHORT_CHECK(!may_be_one_number, ErrorCode::unimplemented,
                 "[variable.apply] expected a sparse gradient with more than one number a row in a "
                 "traced step that clips or accumulates it, got one of shape ",
                 TensorSpec::of(plain).to_string(), "; make the embedding with sparse(false)");
    return plain.to_dense();
  }
  if (is_row_gradient(plain) && is_added_here(rows_of(plain).values)) {
    const GradientRows rows = rows_of(sum_rows(plain));
    const at::Tensor dense = at::zeros(plain.sizes(), rows.values.options());
    return dense.index_copy_(0, rows.ids.squeeze(0), rows.values);
  }
  if (plain._values().numel() != 1) return plain.to_dense();
  // Its strides may be 0.
  const at::Tensor values = plain._values().clone(at::MemoryFormat::Contiguous);
  return at::_sparse_coo_tensor_unsafe(plain._indices(), values, plain.sizes()).to_dense();
}

at::Tensor prepared_gradient(const SlotKey& key, const at::Tensor& gradient,
                             std::span<const double> hyper) {
  if (!is_row_gradient(gradient)) return plain_gradient(gradient);
  const at::Tensor sums = sum_rows(gradient);
  const bool may_be_rows = key.lazy_rows || key.rule.leaves_rows_of_zeros(hyper);
  return may_be_rows ? sums : dense_of(sums);
}

}  // namespace cohort::variable
