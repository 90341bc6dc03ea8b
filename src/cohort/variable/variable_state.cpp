// SPDX-License-Identifier: Apache-2.0
#include "cohort/variable/detail/variable_state.h"

#include "cohort/core/error.h"

namespace cohort {

VariableState::Fresh VariableState::reserve(const SlotKey& key, std::span<const double> hyper,
                                            std::string_view variable_name) const {
  const auto known = slots_.find(key.optimizer);
  if (known != slots_.end()) {
    COHORT_CHECK(known->second.rule == key.rule.name(), ErrorCode::already_exists,
                 "[variable.apply] expected the rule '", known->second.rule, "' of optimizer '",
                 key.optimizer, "', which has slots of it, got '", key.rule.name(), "' (variable '",
                 variable_name, "'); give the optimizer of the other rule another name");
    return {};
  }
  Slots fresh;
  fresh.emplace(key.optimizer,
                RuleSlots{std::string(key.rule.name()), key.rule.create_slots(value_, hyper)});
  return fresh.extract(fresh.begin());
}

void VariableState::apply(const SlotKey& key, Fresh fresh, at::Tensor& new_value,
                          const at::Tensor& gradient, std::span<const double> hyper) {
  RuleSlots* slots = find(key);
  if (slots == nullptr) slots = &slots_.insert(std::move(fresh))->second;
  key.rule.update(new_value, value_, slots->tensors, gradient, hyper);
}

// Two updates of one push, which were reserved together, may have different rules.
VariableState::RuleSlots* VariableState::find(const SlotKey& key) {
  const auto [first, last] = slots_.equal_range(key.optimizer);
  for (auto slots = first; slots != last; ++slots) {
    if (slots->second.rule == key.rule.name()) return &slots->second;
  }
  return nullptr;
}

}  // namespace cohort
