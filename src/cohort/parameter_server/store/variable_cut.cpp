// SPDX-License-Identifier: Apache-2.0
#include "cohort/parameter_server/store/variable_cut.h"

#include <ATen/core/TensorBody.h>

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
  const Lock lock(mutex_);
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
  const Lock lock(mutex_);
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
  const Lock lock(mutex_);
  return cut_ == nullptr || cut_->memory->has_ended() ||
         keep_replaced(effect, rule, /*must=*/false);
}

at::Tensor StoredVariable::rows_of_cut(std::size_t column, const at::Tensor& like,
                                       std::int64_t first, std::int64_t count) const {
  std::vector<std::int64_t> sizes = like.sizes().vec();
  if (!sizes.empty()) sizes.front() = count;
  const at::Tensor rows = rpc::pooled_tensor(sizes, like.scalar_type());
  cut_->rows.copy(column, first, count, static_cast<std::byte*>(rows.data_ptr()));
  return rows;
}

rpc::StateOfRange StoredVariable::export_cut(const rpc::StateRange& range, bool has_slots) {
  check_range(range);
  const Lock lock(mutex_);
  COHORT_CHECK(cut_ != nullptr, ErrorCode::aborted,
               "[server.export_state] expected a variable that was there at the cut, got '", name_,
               "', which was made later");
  const std::int64_t first = range.first_row;
  const std::int64_t count = range.is_whole() ? cut_->rows.rows() : range.rows;
  cut_->rows.check_export(first, name_);
  rpc::StateOfRange state{.range = range,
                          .version = cut_->version,
                          .value = rows_of_cut(0, state_.value(), first, count)};
  if (has_slots) state.slots = cut_->slots;
  for (std::size_t i = 0; i < state.slots.size(); ++i) {
    std::vector<at::Tensor>& tensors = state.slots[i].tensors;
    for (std::size_t k = 0; k < tensors.size(); ++k) {
      const std::size_t column = cut_->columns[i][k];
      if (column > 0) tensors[k] = rows_of_cut(column, tensors[k], first, count);
    }
  }
  cut_->rows.note_export(first + count);
  return state;
}

}  // namespace cohort::parameter_server
