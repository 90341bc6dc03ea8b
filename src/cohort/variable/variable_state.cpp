// SPDX-License-Identifier: Apache-2.0
#include "cohort/variable/detail/variable_state.h"

#include "cohort/core/error.h"

namespace cohort {
namespace {

using Key = std::pair<std::string_view, std::string_view>;

}  // namespace

VariableState::Fresh VariableState::reserve(const SlotKey& key, std::span<const double> hyper,
                                            std::string_view variable_name) const {
  const auto first = slots_.lower_bound(Key(key.optimizer, ""));
  if (first != slots_.end() && first->first.first == key.optimizer) {
    COHORT_CHECK(first->first.second == key.rule.name(), ErrorCode::already_exists,
                 "[variable.apply] expected the rule '", first->first.second, "' of optimizer '",
                 key.optimizer, "', which has slots of it, got '", key.rule.name(), "' (variable '",
                 variable_name, "'); give the optimizer of the other rule another name");
    return {};
  }
  Slots fresh;
  fresh.emplace(Key(key.optimizer, key.rule.name()), key.rule.create_slots(value_, hyper));
  return fresh.extract(fresh.begin());
}

void VariableState::apply(const SlotKey& key, Fresh fresh, at::Tensor& new_value,
                          const at::Tensor& gradient, std::span<const double> hyper) {
  if (fresh) slots_.insert(std::move(fresh));
  auto& slots = slots_.find(Key(key.optimizer, key.rule.name()))->second;
  key.rule.update(new_value, value_, slots, gradient, hyper);
}

}  // namespace cohort
