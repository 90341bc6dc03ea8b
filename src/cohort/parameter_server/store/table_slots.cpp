// SPDX-License-Identifier: Apache-2.0
#include "cohort/parameter_server/store/table_slots.h"

#include <algorithm>
#include <utility>

#include "cohort/core/error.h"
#include "cohort/core/tensor_spec.h"
#include "cohort/optimizer/optimizer.h"

namespace cohort::parameter_server {
namespace {

std::vector<double> unknown_hyper(const variable::UpdateRule& rule) {
  return std::vector<double>(rule.hyperparameter_names().size(), 0.0);
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
    for (std::size_t i = 0; i < first.size(); ++i)
      if (own.slots[i].rows) own.slots[i].rows->set_first(first[i]);
    own.has_first = true;
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

std::vector<internal::OptimizerSlots> TableSlots::export_rows(
    std::span<const std::uint32_t> rows) const {
  std::vector<internal::OptimizerSlots> all;
  for (const auto& [optimizer, own] : optimizers_) {
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

void TableSlots::check_import(std::span<const internal::OptimizerSlots> slots,
                              std::int64_t count) const {
  for (const internal::OptimizerSlots& given : slots) {
    const variable::UpdateRule& rule = optimizer::update_rule_of(given.rule);
    const std::vector<at::Tensor> first = first_slots(rule, unknown_hyper(rule));
    COHORT_CHECK(first.size() == given.tensors.size(), ErrorCode::invalid_argument,
                 "[server.import_state] expected ", first.size(), " slots of rule '", given.rule,
                 "' for table '", name_, "', got ", given.tensors.size());
    for (std::size_t i = 0; i < first.size(); ++i) {
      TensorSpec expected = TensorSpec::of(first[i]);
      if (!expected.sizes->empty()) expected.sizes->front() = count;
      const TensorSpec got = TensorSpec::of(given.tensors[i]);
      COHORT_CHECK(got == expected, ErrorCode::invalid_argument, "[server.import_state] expected ",
                   rule.slot_names()[i], " of ", expected.to_string(), " for table '", name_,
                   "', got ", got.to_string());
    }
  }
}

void TableSlots::make_imported(std::span<const internal::OptimizerSlots> slots,
                               std::int64_t rows_end) {
  for (const internal::OptimizerSlots& given : slots) {
    const variable::UpdateRule& rule = optimizer::update_rule_of(given.rule);
    const auto known = optimizers_.find(given.optimizer);
    if (known != optimizers_.end() && known->second.rule == given.rule) continue;
    make(given.optimizer, rule, unknown_hyper(rule), rows_end);
    optimizers_.find(given.optimizer)->second.has_first = false;
  }
}

void TableSlots::import_rows(std::span<const internal::OptimizerSlots> slots,
                             std::span<const std::uint32_t> rows) {
  for (const internal::OptimizerSlots& given : slots) {
    std::vector<Slot>& own = optimizers_.find(given.optimizer)->second.slots;
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

}  // namespace cohort::parameter_server
