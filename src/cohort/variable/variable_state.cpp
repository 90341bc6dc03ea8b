// SPDX-License-Identifier: Apache-2.0
#include "cohort/variable/variable_state.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/TensorBody.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "cohort/core/error.h"
#include "cohort/variable/row_gradient.h"
#include "cohort/variable/rows.h"

namespace cohort {

// Most gradients come from autograd as they must be, and each operator costs about as much as a
// small update.
at::Tensor plain_gradient(const at::Tensor& gradient) {
  if (gradient.layout() == at::kSparse) return gradient.detach();
  if (gradient.is_contiguous() && !gradient.requires_grad() && !gradient.is_conj() &&
      !gradient.is_neg())
    return gradient;
  return gradient.detach().resolve_conj().resolve_neg().contiguous();
}

at::Tensor elements_of(const at::Tensor& tensor, ElementRange range) {
  const at::AutoDispatchBelowADInplaceOrView raw;  // one cheap view, which autograd need not know
  return tensor.as_strided({range.size()}, {1}, tensor.storage_offset() + range.begin);
}

at::Tensor memory_for_rows(const at::Tensor& like, std::int64_t rows) {
  std::vector<std::int64_t> sizes = like.sizes().vec();
  sizes[0] = rows;
  return at::empty(sizes, like.options());
}

std::int64_t rows_in_cache(std::uint64_t row_bytes) {
  constexpr std::uint64_t kCachedBytes = std::uint64_t{256} << 10;
  return static_cast<std::int64_t>(
      std::max<std::uint64_t>(1, kCachedBytes / std::max<std::uint64_t>(1, row_bytes)));
}

namespace {

// Which slots have a number for each element.
std::vector<bool> are_by_element(const variable::UpdateRule& rule, const at::Tensor& value,
                                 std::span<const double> hyper) {
  std::vector<bool> are;
  for (const at::Tensor& slot : rule.create_slots(at::empty({0}, value.options()), hyper))
    are.push_back(slot.dim() == 1 && slot.numel() == 0);
  return are;
}

// These rows, also to another device.
void copy_rows(at::Tensor& to, const at::Tensor& from, const at::Tensor& ids) {
  const at::Tensor rows = from.index_select(0, ids.to(from.device())).to(to.device());
  if (to.is_cpu()) {
    variable::replace_rows(to, ids.cpu(), rows);
  } else {
    to.index_copy_(0, ids.to(to.device()), rows);
  }
}

// The rules do not look at the ids on the CPU; the kernels of LibTorch on a GPU do.
void check_row_ids(const at::Tensor& ids, const at::Tensor& value, std::string_view name) {
  if (!value.is_cpu()) return;
  const auto* const all = ids.data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < ids.numel(); ++i) {
    COHORT_CHECK(all[i] >= 0 && all[i] < value.size(0), ErrorCode::invalid_argument,
                 "[variable.apply] expected rows in [0, ", value.size(0),
                 ") in a sparse gradient, got row ", all[i], " (variable '", name, "')");
  }
}

}  // namespace

bool VariableState::RuleSlots::is_part() const {
  return std::find(are_parts.begin(), are_parts.end(), true) != are_parts.end();
}

void VariableState::check_rule(const SlotKey& key, std::string_view variable_name) const {
  const auto known = slots_.find(key.optimizer);
  if (known == slots_.end()) return;
  COHORT_CHECK(known->second.rule == key.rule.name(), ErrorCode::already_exists,
               "[variable.apply] expected the rule '", known->second.rule, "' of optimizer '",
               key.optimizer, "', which has slots of it, got '", key.rule.name(), "' (variable '",
               variable_name, "'); give the optimizer of the other rule another name");
}

VariableState::Reserve VariableState::reserve(const SlotKey& key, const at::Tensor& gradient,
                                              std::span<const double> hyper,
                                              std::string_view variable_name) const {
  Reserve reserve{.slots = reserve_slots(key, hyper, variable_name), .gradient = gradient};
  if (!variable::is_row_gradient(gradient)) return reserve;
  variable::GradientRows rows = variable::rows_of(gradient);
  reserve.gradient = std::move(rows.values);
  reserve.row_ids = rows.ids.squeeze(0);
  check_row_ids(reserve.row_ids, value_, variable_name);
  return reserve;
}

VariableState::Reserve VariableState::reserve_rows(const SlotKey& key, at::Tensor row_ids,
                                                   at::Tensor gradient,
                                                   std::span<const double> hyper,
                                                   std::string_view variable_name) const {
  return {.slots = reserve_slots(key, hyper, variable_name),
          .gradient = std::move(gradient),
          .row_ids = std::move(row_ids)};
}

VariableState::Fresh VariableState::reserve_slots(const SlotKey& key, std::span<const double> hyper,
                                                  std::string_view variable_name) const {
  const auto known = slots_.find(key.optimizer);
  if (known != slots_.end()) {
    check_rule(key, variable_name);
    COHORT_CHECK(!known->second.is_part(), ErrorCode::unimplemented,
                 "[variable.apply] expected whole slots of optimizer '", key.optimizer,
                 "', got this worker's share of them (variable '", variable_name,
                 "'); update it in run(), where all workers do, or train without "
                 "shard_optimizer_state");
    return {};
  }
  Slots fresh;
  fresh.emplace(key.optimizer,
                RuleSlots{std::string(key.rule.name()), key.rule.create_slots(value_, hyper)});
  return fresh.extract(fresh.begin());
}

void VariableState::apply(const SlotKey& key, Reserve reserve, at::Tensor& new_value,
                          std::span<const double> hyper) {
  std::vector<at::Tensor>& slots = made(key, std::move(reserve.slots)).tensors;
  if (!reserve.row_ids.defined())
    return key.rule.update(new_value, value_, slots, reserve.gradient, hyper);
  const at::AutoDispatchBelowADInplaceOrView raw;  // as an update: autograd knows nothing of it
  if (!new_value.is_alias_of(value_)) new_value.copy_(value_);
  key.rule.update_rows(new_value, slots, reserve.row_ids, reserve.gradient, hyper);
  new_value.unsafeGetTensorImpl()->bump_version();
}

VariableState::Fresh VariableState::reserve_part(const SlotKey& key, std::span<const double> hyper,
                                                 std::string_view variable_name,
                                                 ElementRange range) const {
  check_rule(key, variable_name);
  if (slots_.find(key.optimizer) != slots_.end()) return {};
  Slots fresh;
  fresh.emplace(key.optimizer, RuleSlots{std::string(key.rule.name()),
                                         key.rule.create_slots(elements_of(value_, range), hyper),
                                         are_by_element(key.rule, value_, hyper)});
  return fresh.extract(fresh.begin());
}

void VariableState::cut_slots(const SlotKey& key, std::span<const double> hyper,
                              ElementRange range) {
  RuleSlots* const known = find(key.optimizer, key.rule.name());
  if (known == nullptr || known->tensors.empty() || known->is_part()) return;
  std::vector<bool> are_parts = are_by_element(key.rule, value_, hyper);
  std::vector<at::Tensor> tensors = known->tensors;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (are_parts[i]) tensors[i] = elements_of(tensors[i], range).clone();
  }
  known->tensors = std::move(tensors);
  known->are_parts = std::move(are_parts);
}

void VariableState::apply_part(const SlotKey& key, Fresh fresh, at::Tensor& new_part,
                               const at::Tensor& gradient_part, std::span<const double> hyper,
                               ElementRange range) {
  key.rule.update(new_part, elements_of(value_, range), made(key, std::move(fresh)).tensors,
                  gradient_part, hyper);
}

void VariableState::drop_slots(const SlotKey& key) {
  const auto known = slots_.find(key.optimizer);
  if (known != slots_.end()) slots_.erase(known);
}

void VariableState::replace_slot(const std::string& optimizer, std::size_t number,
                                 at::Tensor whole) {
  RuleSlots& slots = slots_.find(optimizer)->second;
  slots.tensors.at(number) = std::move(whole);
  slots.are_parts.at(number) = false;
}

void VariableState::follow(const VariableState& first, const SlotKey& key, Reserve reserve) {
  const at::AutoDispatchBelowADInplaceOrView raw;  // as an update: autograd knows nothing of it
  const bool are_fresh = !reserve.slots.empty();
  const auto source = first.slots_.find(key.optimizer);
  std::vector<at::Tensor>& slots = made(key, std::move(reserve.slots)).tensors;
  if (!reserve.row_ids.defined()) {
    value_.copy_(first.value_);
    for (std::size_t i = 0; i < slots.size(); ++i) slots[i].copy_(source->second.tensors[i]);
    return;
  }
  copy_rows(value_, first.value_, reserve.row_ids);
  for (std::size_t i = 0; i < slots.size(); ++i) {
    const at::Tensor& from = source->second.tensors[i];
    if (are_fresh || !variable::has_rows(from, first.value_)) {
      slots[i].copy_(from);
    } else {
      copy_rows(slots[i], from, reserve.row_ids);
    }
  }
}

std::vector<internal::OptimizerSlots> VariableState::all_slots(
    std::string_view variable_name) const {
  std::vector<internal::OptimizerSlots> all;
  for (const auto& [optimizer, of_rule] : slots_) {
    COHORT_CHECK(!of_rule.is_part(), ErrorCode::unimplemented,
                 "[variable.export_state] expected whole slots of optimizer '", optimizer,
                 "', got this worker's share of them (variable '", variable_name,
                 "'); train without shard_optimizer_state");
    all.push_back({optimizer, of_rule.rule, of_rule.tensors});
  }
  return all;
}

std::vector<internal::OptimizerSlots> VariableState::slots_with_gaps() const {
  std::vector<internal::OptimizerSlots> all;
  for (const auto& [optimizer, of_rule] : slots_) {
    std::vector<at::Tensor>& tensors =
        all.emplace_back(internal::OptimizerSlots{optimizer, of_rule.rule, of_rule.tensors})
            .tensors;
    for (std::size_t i = 0; i < of_rule.are_parts.size(); ++i)
      if (of_rule.are_parts[i]) tensors[i] = at::Tensor();
  }
  return all;
}

void VariableState::take_slots(std::span<const internal::OptimizerSlots> slots, bool may_keep) {
  const at::AutoDispatchBelowADInplaceOrView raw;
  Slots taken;
  for (const internal::OptimizerSlots& given : slots) {
    RuleSlots own{given.rule, {}};
    const RuleSlots* const known = find(given.optimizer, given.rule);
    for (std::size_t i = 0; i < given.tensors.size(); ++i) {
      const at::Tensor& from = given.tensors[i];
      const bool is_there = known != nullptr && i < known->tensors.size() &&
                            known->tensors[i].sizes() == from.sizes() &&
                            known->tensors[i].scalar_type() == from.scalar_type();
      if (is_there) {
        own.tensors.push_back(known->tensors[i]);
        if (!own.tensors.back().is_alias_of(from)) own.tensors.back().copy_(from);
      } else {
        const bool keeps = may_keep && from.device() == value_.device();
        own.tensors.push_back(keeps ? from : from.to(value_.device()).clone());
      }
    }
    taken.emplace(given.optimizer, std::move(own));
  }
  slots_ = std::move(taken);
}

VariableState::Slots VariableState::slots_for(std::span<const internal::OptimizerSlots> slots,
                                              bool are_whole) const {
  Slots all;
  for (const internal::OptimizerSlots& given : slots) {
    RuleSlots& own = all.emplace(given.optimizer, RuleSlots{given.rule, {}})->second;
    for (const at::Tensor& part : given.tensors) {
      std::vector<std::int64_t> sizes = part.sizes().vec();
      if (!are_whole && !sizes.empty()) sizes[0] = value_.size(0);
      const at::Tensor slot = find_slot(given.optimizer, given.rule, own.tensors.size(), sizes);
      own.tensors.push_back(slot.defined() ? slot : at::zeros(sizes, part.options()));
    }
  }
  return all;
}

void VariableState::import_slots(Slots all, std::span<const internal::OptimizerSlots> slots,
                                 std::int64_t first_row) {
  // The slots may exist by now: another part of the same state was imported before this one.
  for (auto& [optimizer, own] : all) {
    for (std::size_t i = 0; i < own.tensors.size(); ++i) {
      const at::Tensor slot = find_slot(optimizer, own.rule, i, own.tensors[i].sizes());
      if (slot.defined()) own.tensors[i] = slot;
    }
  }
  slots_ = std::move(all);
  for (const internal::OptimizerSlots& given : slots) {
    const RuleSlots& own = *find(given.optimizer, given.rule);
    for (std::size_t i = 0; i < given.tensors.size(); ++i) {
      const at::Tensor &slot = own.tensors[i], &part = given.tensors[i];
      (part.dim() == 0 ? slot : slot.narrow(0, first_row, part.size(0))).copy_(part);
    }
  }
}

at::Tensor VariableState::find_slot(std::string_view optimizer, std::string_view rule,
                                    std::size_t number, at::IntArrayRef sizes) const {
  const RuleSlots* const known = find(optimizer, rule);
  const bool is_there =
      known != nullptr && number < known->tensors.size() && known->tensors[number].sizes() == sizes;
  return is_there ? known->tensors[number] : at::Tensor();
}

VariableState::RuleSlots& VariableState::made(const SlotKey& key, Fresh fresh) {
  RuleSlots* const known = find(key.optimizer, key.rule.name());
  return known != nullptr ? *known : slots_.insert(std::move(fresh))->second;
}

// Two updates of one push, which were reserved together, may have different rules.
const VariableState::RuleSlots* VariableState::find(std::string_view optimizer,
                                                    std::string_view rule) const {
  const auto [first, last] = slots_.equal_range(optimizer);
  for (auto slots = first; slots != last; ++slots) {
    if (slots->second.rule == rule) return &slots->second;
  }
  return nullptr;
}

}  // namespace cohort
