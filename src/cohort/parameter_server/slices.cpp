// SPDX-License-Identifier: Apache-2.0
#include "cohort/parameter_server/slices.h"

#include <ATen/core/TensorBody.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <utility>

#include "cohort/core/error.h"
#include "cohort/core/tensor_spec.h"
#include "cohort/variable/rows.h"

namespace cohort::parameter_server {
namespace {

using internal::Effect;

std::span<const std::int64_t> numbers_of(const at::Tensor& ids) {
  return {ids.data_ptr<std::int64_t>(), static_cast<std::size_t>(ids.numel())};
}

at::Tensor tensor_of(const std::vector<std::int64_t>& numbers) {
  const at::Tensor tensor =
      at::empty({static_cast<std::int64_t>(numbers.size())}, at::TensorOptions(at::kLong));
  std::copy(numbers.begin(), numbers.end(), tensor.data_ptr<std::int64_t>());
  return tensor;
}

// A number that is no row goes to the first or the last slice, whose server refuses it.
std::size_t slice_of(std::span<const rpc::Slice> slices, std::int64_t row) {
  const auto after =
      std::upper_bound(slices.begin(), slices.end(), row,
                       [](std::int64_t r, const rpc::Slice& slice) { return r < slice.first_row; });
  return after == slices.begin() ? 0 : static_cast<std::size_t>(after - slices.begin()) - 1;
}

// The rows at these places. If the ids ascend, they lie together.
at::Tensor rows_at(const at::Tensor& rows, const at::Tensor& places) {
  const auto numbers = numbers_of(places);
  if (numbers.empty()) return rows.narrow(0, 0, 0);
  const auto count = static_cast<std::int64_t>(numbers.size());
  const bool lie_together = numbers.back() - numbers.front() + 1 == count;
  return lie_together ? rows.narrow(0, numbers.front(), count) : rows.index_select(0, places);
}

bool is_of_rows(const Effect& effect) { return effect.row_ids.defined(); }

}  // namespace

std::vector<RowsOfSlice> split_rows(std::span<const rpc::Slice> slices, const at::Tensor& ids) {
  const at::Tensor all = ids.to(at::kLong).contiguous();
  if (slices.size() == 1 || all.numel() == 0) return {{0, all, {}}};
  std::vector<std::vector<std::int64_t>> local(slices.size()), places(slices.size());
  const auto rows = numbers_of(all);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const std::size_t slice = slice_of(slices, rows[i]);
    local[slice].push_back(rows[i] - slices[slice].first_row);
    places[slice].push_back(static_cast<std::int64_t>(i));
  }
  std::vector<RowsOfSlice> split;
  for (std::size_t i = 0; i < slices.size(); ++i)
    if (!local[i].empty()) split.push_back({i, tensor_of(local[i]), tensor_of(places[i])});
  return split;
}

at::Tensor joined_rows(std::span<const RowsOfSlice> split, std::span<const at::Tensor> rows) {
  if (split.size() == 1) return rows.front();
  std::vector<std::int64_t> sizes = rows.front().sizes().vec();
  sizes.front() = 0;
  for (const RowsOfSlice& each : split) sizes.front() += each.places.numel();
  at::Tensor joined = at::empty(sizes, rows.front().options());
  for (std::size_t i = 0; i < split.size(); ++i) {
    COHORT_CHECK(rows[i].sizes().slice(1) == joined.sizes().slice(1) &&
                     rows[i].scalar_type() == joined.scalar_type() &&
                     rows[i].size(0) == split[i].places.numel(),
                 ErrorCode::data_loss, "[server.pull] expected ", split[i].places.numel(),
                 " rows like those of other servers, got ", TensorSpec::of(rows[i]).to_string());
    variable::replace_rows(joined, split[i].places, rows[i].contiguous());
  }
  return joined;
}

at::Tensor joined_slices(std::span<at::Tensor> values) {
  if (values.size() == 1 || !values.front().defined()) return std::move(values.front());
  return at::cat(at::TensorList(values.data(), values.size()), 0);
}

std::vector<EffectOnSlice> split_effect(std::span<const rpc::Slice> slices, Effect effect,
                                        std::span<const std::uint64_t> versions) {
  if (slices.size() == 1) {
    if (!versions.empty()) effect.version = versions.front();
    std::vector<EffectOnSlice> whole;
    whole.push_back({0, std::move(effect)});
    return whole;
  }
  std::vector<RowsOfSlice> rows;
  if (is_of_rows(effect)) rows = split_rows(slices, effect.row_ids);
  std::vector<EffectOnSlice> parts;
  for (std::size_t i = 0; i < slices.size(); ++i) {
    EffectOnSlice part{i, effect};
    if (!versions.empty()) part.effect.version = versions[i];
    if (!is_of_rows(effect)) {
      for (at::Tensor& tensor : part.effect.tensors)
        tensor = tensor.narrow(0, slices[i].first_row, slices[i].rows);
      parts.push_back(std::move(part));
      continue;
    }
    const auto own = std::find_if(rows.begin(), rows.end(),
                                  [&](const RowsOfSlice& each) { return each.slice == i; });
    if (own == rows.end() && effect.kind != Effect::Kind::apply) continue;
    part.effect.row_ids = own == rows.end() ? tensor_of({}) : own->ids;
    const bool has_rows = own != rows.end() && own->ids.numel() > 0;
    const at::Tensor places = has_rows ? own->places : tensor_of({});
    for (at::Tensor& tensor : part.effect.tensors) tensor = rows_at(tensor, places);
    parts.push_back(std::move(part));
  }
  return parts;
}

}  // namespace cohort::parameter_server
