// SPDX-License-Identifier: Apache-2.0
#include "cohort/parameter_server/store/table_slots.h"

#include <algorithm>
#include <utility>

#include "cohort/core/error.h"
#include "cohort/core/tensor_spec.h"
#include "cohort/optimizer/optimizer.h"

namespace cohort::parameter_server {
namespace {

std::vector<double> unknown_hyper(const variable::UpdateRule& rule, double value = 0) {
  return std::vector<double>(rule.hyperparameter_names().size(), value);
}

}  // namespace

TableSlots::TableSlots(std::string name, at::Tensor row, int shift)
    : name_(std::move(name)), row_(std::move(row)), shift_(shift) {}

std::vector<at::Tensor> TableSlots::first_slots(const variable::UpdateRule& rule,
                                                std::span<const double> hyper) const {
  return rule.create_slots(row_, hyper);
}

void TableSlots::make(std::string_view optimizer, const variable::UpdateRule& rule,
                      std::span<const double> hyper, std::int64_t rows_end) {
  const auto known = optimizers_.find(optimizer);
  if (known != optimizers_.end()) {
    OfOptimizer& own = known->second;
    COHORT_CHECK(own.rule == rule.name(), ErrorCode::already_exists,
                 "[variable.apply] expected the rule '", own.rule, "' of optimizer '", optimizer,
                 "', which has slots of it, got '", rule.name(), "' (table '", name_,
                 "'); give the optimizer of the other rule another name");
    if (own.has_first) return;
    const std::vector<at::Tensor> first = first_slots(rule, hyper);
    for (std::size_t i = 0; i < first.size(); ++i) {
      if (!own.slots[i].rows) continue;
      own.slots[i].rows->set_first(first[i]);
      for (std::size_t row = 0; row < own.unknown_rows.size(); ++row)
        if (own.unknown_rows[row]) own.slots[i].rows->reset(static_cast<std::uint32_t>(row));
    }
    own.has_first = true;
    own.unknown_rows = {};
    own.num_unknown = 0;
    return;
  }
  OfOptimizer fresh{std::string(rule.name()), {}};
  for (const at::Tensor& first : first_slots(rule, hyper)) {
    Slot& slot = fresh.slots.emplace_back();
    if (first.dim() == 0) {
      slot.whole = first;
      continue;
    }
    slot.rows.emplace(first, shift_);
    slot.rows->grow_to(rows_end);
    for (std::int64_t row = 0; row < rows_end; ++row)
      slot.rows->reset(static_cast<std::uint32_t>(row));
  }
  optimizers_.emplace(optimizer, std::move(fresh));
}

void TableSlots::grow_to(std::int64_t rows_end) {
  for (auto& [optimizer, own] : optimizers_)
    for (Slot& slot : own.slots)
      if (slot.rows) slot.rows->grow_to(rows_end);
}

void TableSlots::reset(std::span<const std::uint32_t> rows) {
  for (auto& [optimizer, own] : optimizers_) {
    for (Slot& slot : own.slots) {
      if (!slot.rows) continue;
      for (const std::uint32_t row : rows) slot.rows->reset(row);
    }
    if (own.has_first || rows.empty()) continue;
    const std::uint32_t end = *std::ranges::max_element(rows) + 1;
    if (own.unknown_rows.size() < end) own.unknown_rows.resize(end);
    for (const std::uint32_t row : rows) {
      own.num_unknown += own.unknown_rows[row] ? 0 : 1;
      own.unknown_rows[row] = true;
    }
  }
}

void TableSlots::update(std::string_view optimizer, std::span<const std::uint32_t> rows,
                        const std::function<void(std::span<at::Tensor>)>& update) {
  std::vector<Slot>& own = optimizers_.find(optimizer)->second.slots;
  std::vector<at::Tensor> slots;
  for (const Slot& slot : own) {
    slots.push_back(slot.rows ? slot.rows->memory_for(static_cast<std::int64_t>(rows.size()))
                              : slot.whole);
    if (slot.rows) slot.rows->copy_to(slots.back(), rows);
  }
  update(slots);
  for (std::size_t i = 0; i < own.size(); ++i)
    if (own[i].rows) own[i].rows->copy_from(slots[i], rows);
}

bool TableSlots::are_of_rows(std::string_view optimizer) const {
  const std::vector<Slot>& own = optimizers_.find(optimizer)->second.slots;
  return std::all_of(own.begin(), own.end(),
                     [](const Slot& slot) { return slot.rows.has_value(); });
}

void TableSlots::check_known(std::string_view optimizer, const OfOptimizer& own) const {
  COHORT_CHECK(
      own.num_unknown == 0, ErrorCode::failed_precondition,
      "[server.export_state] expected the slots of '", optimizer, "' for all rows of table '",
      name_,
      "', but its first slots are unknown since it was restored, and another optimizer has "
      "added rows; save after an update of '",
      optimizer, "'");
}

std::vector<internal::OptimizerSlots> TableSlots::export_rows(
    std::span<const std::uint32_t> rows) const {
  std::vector<internal::OptimizerSlots> all;
  for (const auto& [optimizer, own] : optimizers_) {
    check_known(optimizer, own);
    internal::OptimizerSlots& out = all.emplace_back();
    out.optimizer = optimizer;
    out.rule = own.rule;
    for (const Slot& slot : own.slots) {
      out.tensors.push_back(slot.rows
                                ? slot.rows->memory_for(static_cast<std::int64_t>(rows.size()))
                                : slot.whole.clone());
      if (slot.rows) slot.rows->copy_to(out.tensors.back(), rows);
    }
  }
  return all;
}

std::vector<internal::OptimizerSlots> TableSlots::layout(
    std::vector<const RowSegments*>& rows) const {
  std::vector<internal::OptimizerSlots> all;
  for (const auto& [optimizer, own] : optimizers_) {
    check_known(optimizer, own);
    internal::OptimizerSlots& out = all.emplace_back();
    out.optimizer = optimizer;
    out.rule = own.rule;
    for (const Slot& slot : own.slots) {
      out.tensors.push_back(slot.rows ? slot.rows->memory_for(1) : slot.whole.clone());
      if (slot.rows) rows.push_back(&*slot.rows);
    }
  }
  return all;
}

void TableSlots::make_imported(std::span<const internal::OptimizerSlots> slots,
                               std::int64_t rows_end) {
  for (const internal::OptimizerSlots& given : slots) {
    const variable::UpdateRule& rule = optimizer::update_rule_of(given.rule);
    const auto known = optimizers_.find(given.optimizer);
    if (known != optimizers_.end() && known->second.rule == given.rule) continue;
    make(given.optimizer, rule, unknown_hyper(rule), rows_end);
    const std::vector<at::Tensor> with_zeros = first_slots(rule, unknown_hyper(rule));
    optimizers_.find(given.optimizer)->second.has_first =
        std::ranges::equal(with_zeros, first_slots(rule, unknown_hyper(rule, 1)),
                           [](const at::Tensor& a, const at::Tensor& b) { return a.equal(b); });
  }
}

void TableSlots::import_rows(std::span<const internal::OptimizerSlots> slots,
                             std::span<const std::uint32_t> rows) {
  for (const internal::OptimizerSlots& given : slots) {
    OfOptimizer& known = optimizers_.find(given.optimizer)->second;
    for (const std::uint32_t row : rows) {
      if (row >= known.unknown_rows.size() || !known.unknown_rows[row]) continue;
      known.unknown_rows[row] = false;
      --known.num_unknown;
    }
    std::vector<Slot>& own = known.slots;
    for (std::size_t i = 0; i < own.size(); ++i) {
      if (own[i].rows) {
        own[i].rows->copy_from(given.tensors[i].contiguous(), rows);
      } else {
        own[i].whole.copy_(given.tensors[i]);
      }
    }
  }
}

std::uint64_t TableSlots::row_bytes() const {
  std::uint64_t bytes = 0;
  for (const auto& [optimizer, own] : optimizers_)
    for (const Slot& slot : own.slots)
      if (slot.rows) bytes += slot.rows->row_bytes();
  return bytes;
}

std::uint64_t TableSlots::bytes() const {
  std::uint64_t bytes = 0;
  for (const auto& [optimizer, own] : optimizers_)
    for (const Slot& slot : own.slots)
      if (slot.rows) bytes += slot.rows->bytes();
  return bytes;
}

void check_imported_slots(std::span<const internal::OptimizerSlots> slots, const at::Tensor& value,
                          const std::string& owner) {
  const at::Tensor row = value.dim() == 0 ? value : value.slice(0, 0, 1);
  for (const internal::OptimizerSlots& given : slots) {
    const variable::UpdateRule& rule = optimizer::update_rule_of(given.rule);
    const std::vector<at::Tensor> of_row = rule.create_slots(row, unknown_hyper(rule));
    COHORT_CHECK(of_row.size() == given.tensors.size(), ErrorCode::invalid_argument,
                 "[server.import_state] expected ", of_row.size(), " slots of rule '", given.rule,
                 "' for ", owner, ", got ", given.tensors.size());
    for (std::size_t i = 0; i < of_row.size(); ++i) {
      TensorSpec expected = TensorSpec::of(of_row[i]);
      if (!expected.sizes->empty()) expected.sizes->front() = value.size(0);
      const TensorSpec got = TensorSpec::of(given.tensors[i]);
      COHORT_CHECK(got == expected, ErrorCode::invalid_argument, "[server.import_state] expected ",
                   rule.slot_names()[i], " of ", expected.to_string(), " for ", owner, ", got ",
                   got.to_string());
    }
  }
}

}  // namespace cohort::parameter_server
