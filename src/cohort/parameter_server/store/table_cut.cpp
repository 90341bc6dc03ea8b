// SPDX-License-Identifier: Apache-2.0
#include "cohort/parameter_server/store/table_cut.h"

#include <ATen/core/TensorBody.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "cohort/core/error.h"
#include "cohort/rpc/pooled_tensor.h"
#include "cohort/variable/rows.h"

namespace cohort::parameter_server {
namespace {

constexpr std::size_t kKeys = 0, kValues = 1, kFirstSlot = 2;

CutRows::Column column_of(const RowSegments& segments) {
  return {segments.row_bytes(), [&segments](std::int64_t row) -> const std::byte* {
            return segments.row(static_cast<std::uint32_t>(row));
          }};
}

at::Tensor rows_like(const CutRows& rows, std::size_t column, const at::Tensor& like,
                     std::span<const std::int64_t> numbers) {
  std::vector<std::int64_t> sizes = like.sizes().vec();
  sizes.front() = static_cast<std::int64_t>(numbers.size());
  const at::Tensor taken = rpc::pooled_tensor(sizes, like.scalar_type());
  const std::size_t row_bytes = like.nbytes();
  auto* to = static_cast<std::byte*>(taken.data_ptr());
  for (std::size_t i = 0; i < numbers.size();) {
    std::size_t end = i + 1;  // of successive rows
    while (end < numbers.size() && numbers[end] == numbers[end - 1] + 1) ++end;
    rows.copy(column, numbers[i], static_cast<std::int64_t>(end - i), to + i * row_bytes);
    i = end;
  }
  return taken;
}

}  // namespace

void StoredTable::begin_cut(const std::shared_ptr<CutMemory>& memory) {
  const Lock lock(mutex_);
  std::vector<const RowSegments*> of_slots;
  std::vector<internal::OptimizerSlots> slots = slots_.layout(of_slots);
  std::vector<CutRows::Column> columns{
      {sizeof(std::int64_t),
       [this](std::int64_t row) COHORT_NO_THREAD_SAFETY_ANALYSIS {
         return directory_.key_bytes(static_cast<std::uint32_t>(row));
       }},
      column_of(values_)};
  for (const RowSegments* each : of_slots) columns.push_back(column_of(*each));
  std::vector<RowDirectory::Counts> counts;
  if (directory_.num_counted() > 0) {
    const auto parts = static_cast<std::int64_t>(directory_.counts(0, 0).parts_end);
    for (std::int64_t part = 0; part < parts; ++part) counts.push_back(directory_.counts(part, 1));
  }
  const std::uint64_t counts_bytes = directory_.num_counted() * 2 * sizeof(std::int64_t);
  cut_.reset(new Cut{version_, use_now(), std::move(slots), std::move(counts), counts_bytes, memory,
                     CutRows(directory_.rows_end(), std::move(columns), shift_, memory)});
  memory->take(counts_bytes);
  directory_.set_before_free([this](std::uint32_t row) COHORT_NO_THREAD_SAFETY_ANALYSIS {
    cut_->rows.keep(std::span(&row, 1), /*must=*/true);
  });
}

void StoredTable::end_cut() {
  const Lock lock(mutex_);
  directory_.set_before_free(nullptr);
  cut_.reset();
}

// An update changes few rows, and which ones is known only when new keys have theirs. So it waits
// while there is no memory, and then takes what it needs.
bool StoredTable::keep_for_cut(const internal::Effect&, const variable::UpdateRule*) {
  const Lock lock(mutex_);
  return cut_ == nullptr || cut_->memory->has_ended() || cut_->memory->has_room();
}

rpc::StateOfRange StoredTable::export_cut(const rpc::StateRange& range, bool has_slots) {
  check_range(range);
  const Lock lock(mutex_);
  COHORT_CHECK(cut_ != nullptr, ErrorCode::aborted,
               "[server.export_state] expected a table that was there at the cut, got '", name_,
               "', which was made later");
  return range.is_of_counts ? export_counts_of_cut(range) : export_rows_of_cut(range, has_slots);
}

rpc::StateOfRange StoredTable::export_rows_of_cut(const rpc::StateRange& range, bool has_slots) {
  CutRows& rows = cut_->rows;
  const std::int64_t first = range.first_row;
  const std::int64_t left = std::max<std::int64_t>(0, rows.rows() - first);
  const std::int64_t count = range.is_whole() ? left : std::min(range.rows, left);
  rows.check_export(first, name_);
  std::vector<std::int64_t> keys(static_cast<std::size_t>(count));
  rows.copy(kKeys, first, count, reinterpret_cast<std::byte*>(keys.data()));
  std::vector<std::int64_t> numbers, present;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t key = keys[static_cast<std::size_t>(i)];
    if (key == kNoKey) continue;
    numbers.push_back(first + i);
    present.push_back(key);
  }
  const at::Tensor row = row_tensor(1);
  rpc::StateOfRange state{
      .range = range, .version = cut_->version, .value = rows_like(rows, kValues, row, numbers)};
  state.table = {variable::tensor_of(present), static_cast<std::uint64_t>(rows.rows()), cut_->use};
  if (has_slots) state.slots = cut_->slots;
  std::size_t column = kFirstSlot;
  for (internal::OptimizerSlots& slots : state.slots) {
    for (at::Tensor& tensor : slots.tensors)
      if (tensor.dim() > 0) tensor = rows_like(rows, column++, tensor, numbers);
  }
  rows.note_export(first + count);
  return state;
}

rpc::StateOfRange StoredTable::export_counts_of_cut(const rpc::StateRange& range) const {
  const auto all = static_cast<std::int64_t>(cut_->counts.size());
  const std::int64_t begin = std::min(range.first_row, all);
  const std::int64_t end = range.is_whole() ? all : begin + std::min(range.rows, all - begin);
  std::vector<std::int64_t> keys, updates;
  for (std::int64_t part = begin; part < end; ++part) {
    const RowDirectory::Counts& counts = cut_->counts[static_cast<std::size_t>(part)];
    keys.insert(keys.end(), counts.keys.begin(), counts.keys.end());
    updates.insert(updates.end(), counts.updates.begin(), counts.updates.end());
  }
  rpc::StateOfRange state{
      .range = range, .version = cut_->version, .value = variable::tensor_of(updates)};
  state.table = {variable::tensor_of(keys), static_cast<std::uint64_t>(all), cut_->use};
  return state;
}

}  // namespace cohort::parameter_server
