// SPDX-License-Identifier: Apache-2.0
#include "cohort/parameter_server/store/variable_cut.h"

#include <ATen/core/TensorBody.h>

#include <algorithm>
#include <utility>

#include "cohort/core/error.h"
#include "cohort/rpc/pooled_tensor.h"
#include "cohort/variable/rows.h"
#include "cohort/variable/variable_state.h"

namespace cohort::parameter_server {
namespace {

constexpr int kAnyShift = 30;

std::size_t row_bytes_of(const at::Tensor& tensor, std::int64_t rows) {
  return rows == 0 ? 0 : tensor.nbytes() / static_cast<std::size_t>(rows);
}

CutRows::Column column_of(const at::Tensor& slot, std::int64_t rows) {
  COHORT_ASSERT(slot.is_contiguous());
  const std::size_t row_bytes = row_bytes_of(slot, rows);
  return {row_bytes, [slot, row_bytes](std::int64_t row) {
            return static_cast<const std::byte*>(slot.data_ptr()) +
                   static_cast<std::size_t>(row) * row_bytes;
          }};
}

}  // namespace

void StoredVariable::begin_cut(const std::shared_ptr<CutMemory>& memory) {
  const ExportLock lock(mutex_);
  const at::Tensor& value = state_.value();
  const std::int64_t rows = value.dim() == 0 ? 1 : value.size(0);
  const std::size_t row_bytes = row_bytes_of(value, rows);
  // The value moves from buffer to buffer.
  std::vector<CutRows::Column> columns{
      {row_bytes, [this, row_bytes](std::int64_t row) COHORT_NO_THREAD_SAFETY_ANALYSIS {
         return static_cast<const std::byte*>(state_.value().data_ptr()) +
                static_cast<std::size_t>(row) * row_bytes;
       }}};
  std::vector<internal::OptimizerSlots> all = state_.all_slots(name_);
  std::vector<std::vector<std::size_t>> numbers;
  for (internal::OptimizerSlots& slots : all) {
    std::vector<std::size_t>& own = numbers.emplace_back();
    for (at::Tensor& slot : slots.tensors) {
      const bool has_rows = value.dim() > 0 && variable::has_rows(slot, value);
      own.push_back(has_rows ? columns.size() : 0);
      if (has_rows) columns.push_back(column_of(slot, rows));
      if (!has_rows) slot = slot.clone();
    }
  }
  cut_.reset(new Cut{version_, std::move(all), std::move(numbers), memory,
                     CutRows(rows, std::move(columns), kAnyShift, memory)});
}

void StoredVariable::end_cut() {
  const ExportLock lock(mutex_);
  cut_.reset();
}

// All rows, also for a rule that changes only some, if it is not certain that it does.
bool StoredVariable::keep_replaced(const internal::Effect& effect, const variable::UpdateRule* rule,
                                   bool must) {
  const at::Tensor& ids = effect.row_ids;
  const bool are_ids = ids.defined() && ids.dim() == 1 && ids.is_cpu() &&
                       (ids.scalar_type() == at::kLong || ids.scalar_type() == at::kInt);
  const bool is_of_rows =
      are_ids && (rule == nullptr || effect.lazy_rows || rule->leaves_rows_of_zeros(effect.hyper));
  if (!is_of_rows) return cut_->rows.keep_all(must);
  const at::Tensor plain = ids.to(at::kLong).contiguous();
  return cut_->rows.keep(variable::numbers_of(plain), must);
}

bool StoredVariable::keep_for_cut(const internal::Effect& effect,
                                  const variable::UpdateRule* rule) {
  const ExportLock lock(mutex_);
  return cut_ == nullptr || cut_->memory->has_ended() ||
         keep_replaced(effect, rule, /*must=*/false);
}

// The state of a range, whose rows are still to be copied into the tensors of `columns`.
rpc::StateOfRange StoredVariable::range_of_cut(const rpc::StateRange& range, bool has_slots,
                                               RowsOfColumns& columns) const {
  cut_->rows.check_export(range.first_row, name_);
  const std::int64_t count = range.is_whole() ? cut_->rows.rows() : range.rows;
  const auto memory_like = [&](std::size_t column, const at::Tensor& like) {
    std::vector<std::int64_t> sizes = like.sizes().vec();
    if (!sizes.empty()) sizes.front() = count;
    columns.emplace_back(column, rpc::pooled_tensor(sizes, like.scalar_type()));
    return columns.back().second;
  };
  rpc::StateOfRange state{
      .range = range, .version = cut_->version, .value = memory_like(0, state_.value())};
  if (has_slots) state.slots = cut_->slots;
  for (std::size_t i = 0; i < state.slots.size(); ++i) {
    std::vector<at::Tensor>& tensors = state.slots[i].tensors;
    for (std::size_t k = 0; k < tensors.size(); ++k) {
      const std::size_t column = cut_->columns[i][k];
      if (column > 0) tensors[k] = memory_like(column, tensors[k]);
    }
  }
  return state;
}

// Copies some rows at a time, so that updates do not wait for all of them.
rpc::StateOfRange StoredVariable::export_cut(const rpc::StateRange& range, bool has_slots) {
  check_range(range);
  RowsOfColumns columns;
  rpc::StateOfRange state;
  std::shared_ptr<CutMemory> memory;  // tells this cut from a later one
  std::int64_t count = 0;
  {
    const ExportLock lock(mutex_);
    COHORT_CHECK(cut_ != nullptr, ErrorCode::aborted,
                 "[server.export_state] expected a variable that was there at the cut, got '",
                 name_, "', which was made later");
    state = range_of_cut(range, has_slots, columns);
    memory = cut_->memory;
    count = range.is_whole() ? cut_->rows.rows() : range.rows;
  }
  std::int64_t done = 0;
  do {
    mutex_.let_others_go_first();
    const ExportLock lock(mutex_);
    COHORT_CHECK(cut_ != nullptr && cut_->memory == memory, ErrorCode::aborted,
                 "[server.export_state] expected a cut that stays during its export, got its end "
                 "(variable '",
                 name_, "'); save again");
    const std::int64_t rows = std::min(cut_->rows.rows_of_piece(), count - done);
    for (const auto& [column, tensor] : columns) {
      const std::size_t bytes = row_bytes_of(tensor, count);
      cut_->rows.copy(
          column, range.first_row + done, rows,
          static_cast<std::byte*>(tensor.data_ptr()) + static_cast<std::size_t>(done) * bytes);
    }
    done += rows;
    cut_->rows.note_export(range.first_row + done);
  } while (done < count);
  return state;
}

}  // namespace cohort::parameter_server
