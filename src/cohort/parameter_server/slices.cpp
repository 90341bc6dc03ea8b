// SPDX-License-Identifier: Apache-2.0
#include "cohort/parameter_server/slices.h"

#include <ATen/core/TensorBody.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <utility>

#include "cohort/core/error.h"
#include "cohort/core/random.h"
#include "cohort/core/tensor_spec.h"

namespace cohort::parameter_server {
namespace {

using internal::Effect;

bool is_of_rows(const Effect& effect) { return effect.row_ids.defined(); }

}  // namespace

// The hash is not that of a table's index, whose rows would otherwise share a part of it.
std::size_t slice_of_key(std::int64_t key, std::size_t num_slices) {
  constexpr std::uint64_t kSlices = 0x736c69636573;
  return mix_seed(kSlices, static_cast<std::uint64_t>(key)) % num_slices;
}

std::vector<RowsOfPart> split_rows(std::span<const rpc::Slice> slices, const at::Tensor& ids) {
  if (slices.front().is_by_key()) {
    return variable::split_ids(slices.size(), ids, [&](std::int64_t key) {
      return std::pair(slice_of_key(key, slices.size()), key);
    });
  }
  std::vector<std::int64_t> first_rows;
  for (const rpc::Slice& slice : slices) first_rows.push_back(slice.first_row);
  return variable::split_rows(first_rows, ids);
}

at::Tensor joined_slices(std::span<at::Tensor> values) {
  if (values.size() == 1 || !values.front().defined()) return std::move(values.front());
  const auto is_like_first = [&](const at::Tensor& value) {
    return value.defined() && value.dim() > 0 &&
           value.scalar_type() == values.front().scalar_type() &&
           value.sizes().slice(1) == values.front().sizes().slice(1);
  };
  COHORT_CHECK(std::ranges::all_of(values, is_like_first), ErrorCode::data_loss,
               "[server.pull] expected parts of one variable with rows of one size, got ",
               TensorSpec::of(values.front()).to_string(), " and other ones");
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
  std::vector<RowsOfPart> rows;
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
                                  [&](const RowsOfPart& each) { return each.part == i; });
    if (own == rows.end() && effect.kind != Effect::Kind::apply) continue;
    const bool has_rows = own != rows.end() && own->ids.numel() > 0;
    const at::Tensor none = at::empty({0}, at::TensorOptions(at::kLong));
    part.effect.row_ids = own == rows.end() ? none : own->ids;
    const at::Tensor& places = has_rows ? own->places : none;
    for (at::Tensor& tensor : part.effect.tensors) tensor = variable::rows_at(tensor, places);
    parts.push_back(std::move(part));
  }
  return parts;
}

}  // namespace cohort::parameter_server
