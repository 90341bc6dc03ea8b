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

// Copies these rows of a column one after the other. Returns where they end.
std::byte* copy_rows(const CutRows& rows, std::size_t column, std::size_t row_bytes,
                     std::span<const std::int64_t> numbers, std::byte* to) {
  for (std::size_t i = 0; i < numbers.size();) {
    std::size_t end = i + 1;  // of successive rows
    while (end < numbers.size() && numbers[end] == numbers[end - 1] + 1) ++end;
    rows.copy(column, numbers[i], static_cast<std::int64_t>(end - i), to);
    to += (end - i) * row_bytes;
    i = end;
  }
  return to;
}

}  // namespace

void StoredTable::begin_cut(const std::shared_ptr<CutMemory>& memory) {
  const ExportLock lock(mutex_);
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
  const ExportLock lock(mutex_);
  directory_.set_before_free(nullptr);
  cut_.reset();
}

// An update changes few rows, and which ones is known only when new keys have theirs. So it waits
// while there is no memory, and then takes what it needs.
bool StoredTable::keep_for_cut(const internal::Effect&, const variable::UpdateRule*) {
  const ExportLock lock(mutex_);
  return cut_ == nullptr || cut_->memory->has_ended() || cut_->memory->has_room();
}

rpc::StateOfRange StoredTable::export_cut(const rpc::StateRange& range, bool has_slots) {
  check_range(range);
  ExportedRows exported;
  {
    const ExportLock lock(mutex_);
    COHORT_CHECK(cut_ != nullptr, ErrorCode::aborted,
                 "[server.export_state] expected a table that was there at the cut, got '", name_,
                 "', which was made later");
    if (range.is_of_counts) return export_counts_of_cut(range);
    exported = begin_export(range, has_slots);
  }
  while (exported.end < exported.range_end || exported.is_new) {
    mutex_.let_others_go_first();
    const ExportLock lock(mutex_);
    COHORT_CHECK(cut_ != nullptr && cut_->memory == exported.memory, ErrorCode::aborted,
                 "[server.export_state] expected a cut that stays during its export, got its end "
                 "(table '",
                 name_, "'); save again");
    export_piece(exported);
  }
  return std::move(exported.state);
}

// Notes which rows of the range there are, and makes room for them. The keys of the cut do not
// change, so the rows may be copied later.
StoredTable::ExportedRows StoredTable::begin_export(const rpc::StateRange& range, bool has_slots) {
  CutRows& rows = cut_->rows;
  const std::int64_t first = range.first_row;
  const std::int64_t left = std::max<std::int64_t>(0, rows.rows() - first);
  const std::int64_t count = range.is_whole() ? left : std::min(range.rows, left);
  rows.check_export(first, name_);
  std::vector<std::int64_t> keys(static_cast<std::size_t>(count)), present;
  rows.copy(kKeys, first, count, reinterpret_cast<std::byte*>(keys.data()));
  ExportedRows exported{.memory = cut_->memory, .end = first, .range_end = first + count};
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t key = keys[static_cast<std::size_t>(i)];
    if (key == kNoKey) continue;
    exported.numbers.push_back(first + i);
    present.push_back(key);
  }
  const auto memory_like = [&](const at::Tensor& row, std::size_t column) {
    std::vector<std::int64_t> sizes = row.sizes().vec();
    sizes.front() = static_cast<std::int64_t>(present.size());
    const at::Tensor memory = rpc::pooled_tensor(sizes, row.scalar_type());
    exported.columns.push_back({column, row.nbytes(), static_cast<std::byte*>(memory.data_ptr())});
    return memory;
  };
  exported.state = {
      .range = range, .version = cut_->version, .value = memory_like(row_tensor(1), kValues)};
  exported.state.table = {variable::tensor_of(present), static_cast<std::uint64_t>(rows.rows()),
                          cut_->use};
  if (has_slots) exported.state.slots = cut_->slots;
  std::size_t column = kFirstSlot;
  for (internal::OptimizerSlots& slots : exported.state.slots) {
    for (at::Tensor& tensor : slots.tensors)
      if (tensor.dim() > 0) tensor = memory_like(tensor, column++);
  }
  return exported;
}

void StoredTable::export_piece(ExportedRows& exported) {
  CutRows& rows = cut_->rows;
  exported.is_new = false;
  exported.end = std::min(exported.end + rows.rows_of_piece(), exported.range_end);
  const auto begin = exported.numbers.begin() + static_cast<std::ptrdiff_t>(exported.done);
  const auto end = std::lower_bound(begin, exported.numbers.end(), exported.end);
  for (ExportedRows::Column& column : exported.columns)
    column.to = copy_rows(rows, column.number, column.row_bytes, std::span(begin, end), column.to);
  exported.done += static_cast<std::size_t>(end - begin);
  rows.note_export(exported.end);
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
