// SPDX-License-Identifier: Apache-2.0
#include "cohort/variable/rows.h"

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <ATen/core/TensorBody.h>
#include <ATen/ops/_unique.h>
#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "cohort/core/error.h"
#include "cohort/variable/effect_kinds.h"
#include "cohort/variable/row_loop.h"

namespace cohort::variable {
namespace {

bool is_readable(const at::Tensor& tensor) {
  return tensor.layout() == at::kStrided && (tensor.device().is_cpu() || tensor.is_cuda());
}

// Arithmetic of one element. Overflow of signed integers is undefined in C++, so they are added and
// multiplied as unsigned numbers, which wrap around.
template <class T, class F>
T wrapping(T a, T b, F f) {
  if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(f(static_cast<std::uint64_t>(a), static_cast<std::uint64_t>(b)));
  } else {
    return f(a, b);
  }
}

template <class T>
T quotient(T a, T b) {
  if constexpr (std::is_integral_v<T> && std::is_signed_v<T>) {
    // The quotient of the smallest number and -1 does not exist.
    if (b == T(-1)) return wrapping(T(0), a, [](auto x, auto y) { return x - y; });
  }
  return static_cast<T>(a / b);
}

template <class T>
bool is_nan(T value) {
  if constexpr (std::is_integral_v<T>) {
    return false;
  } else {
    return value != value;
  }
}

template <class T, class F>
void for_each_element(const at::Tensor& value, const at::Tensor& indices, const at::Tensor& rows,
                      F f) {
  const std::int64_t count = indices.numel();
  const std::int64_t width = count == 0 ? 0 : rows.numel() / count;
  T* const own = value.data_ptr<T>();
  const T* const other = rows.data_ptr<T>();
  const auto* const index = indices.data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < count; ++i) {
    T* const row = own + index[i] * width;
    const T* const by = other + i * width;
    for (std::int64_t k = 0; k < width; ++k) row[k] = f(row[k], by[k]);
  }
}

template <class T>
void combine_rows(Effect::Kind kind, const at::Tensor& value, const at::Tensor& indices,
                  const at::Tensor& rows) {
  const auto each = [&](auto f) { for_each_element<T>(value, indices, rows, f); };
  switch (kind) {
    case Effect::Kind::scatter_add:
      return each([](T a, T b) { return wrapping(a, b, [](auto x, auto y) { return x + y; }); });
    case Effect::Kind::scatter_sub:
      return each([](T a, T b) { return wrapping(a, b, [](auto x, auto y) { return x - y; }); });
    case Effect::Kind::scatter_mul:
      return each([](T a, T b) { return wrapping(a, b, [](auto x, auto y) { return x * y; }); });
    case Effect::Kind::scatter_div:
      return each([](T a, T b) { return quotient(a, b); });
    case Effect::Kind::scatter_min:
      return each([](T a, T b) { return b < a || is_nan(b) ? b : a; });
    case Effect::Kind::scatter_max:
      return each([](T a, T b) { return a < b || is_nan(b) ? b : a; });
    default:
      return replace_rows(value, indices, rows);
  }
}

}  // namespace

void check_indices(std::string_view call, std::string_view name, const TensorSpec& spec,
                   const at::Tensor& indices) {
  COHORT_CHECK(indices.defined(), ErrorCode::invalid_argument, "[", call,
               "] expected indices, got an undefined tensor (variable '", name, "')");
  const at::ScalarType type = indices.scalar_type();
  COHORT_CHECK(
      (type == at::kInt || type == at::kLong) && indices.dim() == 1 && is_readable(indices),
      ErrorCode::invalid_argument, "[", call,
      "] expected dense indices int64[n] or int32[n] on the CPU or a GPU, got ",
      TensorSpec::of(indices).to_string(), " on ", indices.device().str(), " (variable '", name,
      "')");
  COHORT_CHECK(!spec.sizes->empty(), ErrorCode::invalid_argument, "[", call,
               "] expected a variable that has rows, got ", spec.to_string(), " (variable '", name,
               "'); use assign(), assign_add() or assign_sub()");
  const std::int64_t rows = spec.sizes->front();
  const at::Tensor wide = indices.cpu().to(at::kLong).contiguous();
  const auto* const index = wide.data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < wide.numel(); ++i) {
    COHORT_CHECK(index[i] >= 0 && index[i] < rows, ErrorCode::invalid_argument, "[", call,
                 "] expected indices of the ", rows, " rows of variable '", name, "', got ",
                 index[i], " at position ", i);
  }
}

std::span<const std::int64_t> numbers_of(const at::Tensor& ids) {
  return {ids.data_ptr<std::int64_t>(), static_cast<std::size_t>(ids.numel())};
}

at::Tensor tensor_of(std::span<const std::int64_t> numbers) {
  const at::Tensor tensor =
      at::empty({static_cast<std::int64_t>(numbers.size())}, at::TensorOptions(at::kLong));
  std::copy(numbers.begin(), numbers.end(), tensor.data_ptr<std::int64_t>());
  return tensor;
}

namespace {

// Calls visit(place of row index[i] in the value, i) for one i after the other.
template <class Visit>
void for_each_index(const at::Tensor& value, std::span<const std::int64_t> index, std::size_t bytes,
                    const Visit& visit) {
  auto* const own = static_cast<std::byte*>(value.data_ptr());
  for_each_row(
      index.size(), bytes,
      [&](std::size_t i) { return own + static_cast<std::size_t>(index[i]) * bytes; }, visit);
}

// 0: there is nothing to copy.
std::size_t row_bytes(const at::Tensor& rows) {
  return rows.numel() == 0 ? 0 : rows.nbytes() / static_cast<std::size_t>(rows.size(0));
}

}  // namespace

void copy_rows(const at::Tensor& rows, const at::Tensor& value, const at::Tensor& indices) {
  if (row_bytes(rows) == 0) return;
  auto* const out = static_cast<std::byte*>(rows.data_ptr());
  const auto index = numbers_of(indices);
  // For fewer bytes a second thread costs more than it saves.
  constexpr std::size_t kParallelBytes = std::size_t{4} << 20;
  const std::size_t at_once = std::max<std::size_t>(1, kParallelBytes / row_bytes(rows));
  const auto copy = [&](std::int64_t begin, std::int64_t end) {
    const auto first = static_cast<std::size_t>(begin), last = static_cast<std::size_t>(end);
    with_row_size(row_bytes(rows), [&](auto bytes) {
      for_each_index(value, index.subspan(first, last - first), bytes,
                     [&](const std::byte* row, std::size_t i) {
                       std::memcpy(out + (first + i) * bytes, row, bytes);
                     });
    });
  };
  at::parallel_for(0, indices.numel(), static_cast<std::int64_t>(at_once), copy);
}

void replace_rows(const at::Tensor& value, const at::Tensor& indices, const at::Tensor& rows) {
  if (row_bytes(rows) == 0) return;
  const auto* const in = static_cast<const std::byte*>(rows.data_ptr());
  with_row_size(row_bytes(rows), [&](auto bytes) {
    for_each_index(value, numbers_of(indices), bytes,
                   [&](std::byte* row, std::size_t i) { std::memcpy(row, in + i * bytes, bytes); });
  });
}

void check_rows(Effect::Kind kind, std::string_view name, const TensorSpec& spec,
                const at::Tensor& indices, const at::Tensor& rows) {
  const std::string call = call_name(kind);
  check_indices(call, name, spec, indices);
  TensorSpec expected = spec;
  expected.sizes->front() = indices.numel();
  COHORT_CHECK(rows.defined(), ErrorCode::invalid_argument, "[", call, "] expected rows ",
               expected.to_string(), ", got an undefined tensor (variable '", name, "')");
  COHORT_CHECK(is_readable(rows) && TensorSpec::of(rows) == expected, ErrorCode::invalid_argument,
               "[", call, "] expected dense rows ", expected.to_string(),
               " on the CPU or a GPU, one for each index, got ", TensorSpec::of(rows).to_string(),
               " on ", rows.device().str(), " (variable '", name, "')");
  if (kind == Effect::Kind::scatter_update || kind == Effect::Kind::apply) return;
  COHORT_CHECK(spec.dtype != at::kBool && !at::isComplexType(spec.dtype),
               ErrorCode::invalid_argument, "[", call, "] expected real numbers, got ",
               spec.to_string(), " (variable '", name, "'); use scatter_update()");
  COHORT_CHECK(kind != Effect::Kind::scatter_div || !at::isIntegralType(spec.dtype, false) ||
                   rows.ne(0).all().item<bool>(),
               ErrorCode::invalid_argument, "[", call,
               "] expected integers other than 0 to divide by (variable '", name, "')");
}

namespace {

// The rows of a value on a GPU are changed on the CPU. So several changes of one row have their
// order, and the same bits everywhere.
void apply_rows_of_gpu(Effect::Kind kind, const at::Tensor& value, const at::Tensor& indices,
                       const at::Tensor& rows) {
  const auto [used, places] =
      at::_unique(indices.cpu().to(at::kLong), /*sorted=*/true, /*return_inverse=*/true);
  const at::Tensor used_there = used.to(value.device());
  const at::Tensor few = value.detach().index_select(0, used_there).cpu();
  apply_rows(kind, few, places, rows.detach().cpu());
  value.index_copy_(0, used_there, few.to(value.device()));
}

}  // namespace

void apply_rows(Effect::Kind kind, const at::Tensor& value, const at::Tensor& indices,
                const at::Tensor& rows) {
  const c10::NoGradGuard no_grad;
  if (!value.is_cpu()) return apply_rows_of_gpu(kind, value, indices, rows);
  const at::Tensor index = indices.cpu().to(at::kLong).contiguous();
  at::Tensor other = rows.detach().cpu().resolve_conj().resolve_neg().contiguous();
  if (other.is_alias_of(value)) other = other.clone();
  if (kind == Effect::Kind::scatter_update) {
    replace_rows(value, index, other);
  } else {
    AT_DISPATCH_ALL_TYPES_AND2(at::kHalf, at::kBFloat16, value.scalar_type(), "scatter",
                               [&] { combine_rows<scalar_t>(kind, value, index, other); });
  }
  // Autograd must detect it if a graph that saved the old value is run backwards later.
  value.unsafeGetTensorImpl()->bump_version();
}

namespace {

std::size_t part_of(std::span<const std::int64_t> first_rows, std::int64_t row) {
  const auto after = std::upper_bound(first_rows.begin(), first_rows.end(), row);
  return after == first_rows.begin() ? 0 : static_cast<std::size_t>(after - first_rows.begin()) - 1;
}

}  // namespace

std::vector<RowsOfPart> split_ids(
    std::size_t num_parts, const at::Tensor& ids,
    const std::function<std::pair<std::size_t, std::int64_t>(std::int64_t id)>& place_of) {
  const at::Tensor all = ids.to(at::kLong).contiguous();
  if (num_parts == 1 || all.numel() == 0) return {{0, all, {}}};
  std::vector<std::vector<std::int64_t>> local(num_parts), places(num_parts);
  const auto rows = numbers_of(all);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const auto [part, number] = place_of(rows[i]);
    local[part].push_back(number);
    places[part].push_back(static_cast<std::int64_t>(i));
  }
  std::vector<RowsOfPart> split;
  for (std::size_t i = 0; i < num_parts; ++i)
    if (!local[i].empty()) split.push_back({i, tensor_of(local[i]), tensor_of(places[i])});
  return split;
}

std::vector<RowsOfPart> split_rows(std::span<const std::int64_t> first_rows,
                                   const at::Tensor& ids) {
  return split_ids(first_rows.size(), ids, [&](std::int64_t row) {
    const std::size_t part = part_of(first_rows, row);
    return std::pair(part, row - first_rows[part]);
  });
}

at::Tensor joined_rows(std::span<const RowsOfPart> split, std::span<const at::Tensor> rows) {
  if (split.size() == 1) return rows.front();
  std::vector<std::int64_t> sizes = rows.front().sizes().vec();
  sizes.front() = 0;
  for (const RowsOfPart& each : split) sizes.front() += each.places.numel();
  at::Tensor joined = at::empty(sizes, rows.front().options());
  for (std::size_t i = 0; i < split.size(); ++i) {
    COHORT_CHECK(rows[i].sizes().slice(1) == joined.sizes().slice(1) &&
                     rows[i].scalar_type() == joined.scalar_type() &&
                     rows[i].size(0) == split[i].places.numel(),
                 ErrorCode::data_loss, "[server.pull] expected ", split[i].places.numel(),
                 " rows like those of other servers, got ", TensorSpec::of(rows[i]).to_string());
    replace_rows(joined, split[i].places, rows[i].contiguous());
  }
  return joined;
}

at::Tensor rows_at(const at::Tensor& rows, const at::Tensor& places) {
  const auto numbers = numbers_of(places);
  if (numbers.empty()) return rows.narrow(0, 0, 0);
  const auto count = static_cast<std::int64_t>(numbers.size());
  const bool lie_together = numbers.back() - numbers.front() + 1 == count;
  return lie_together ? rows.narrow(0, numbers.front(), count) : rows.index_select(0, places);
}

}  // namespace cohort::variable
