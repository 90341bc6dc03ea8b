// SPDX-License-Identifier: Apache-2.0
// The names by which optimizers find their slots.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cohort/core/error.h"
#include "cohort/core/mutex.h"
#include "cohort/variable/update_rule.h"
#include "cohort/variable/variable.h"

namespace cohort::optimizer {

// "adam", "adam_1", …: the optimizers of one rule that have no name of their own, by creation.
inline std::string next_name(const variable::UpdateRule& rule) {
  static Mutex mutex;
  static std::map<std::string, int, std::less<>> made;
  const Lock lock(mutex);
  const int number = made[std::string(rule.name())]++;
  return std::string(rule.name()) + (number == 0 ? "" : "_" + std::to_string(number));
}

// A name that one living optimizer has for its variables, whose slots are found by it. Thread-safe.
class ClaimedName {
 public:
  ClaimedName(std::string name, const std::vector<Variable>& variables,
              const variable::UpdateRule& rule)
      : name_(std::move(name)) {
    const Lock lock(mutex());
    for (const Variable& variable : variables) {
      const auto found = claimed().find({variable.impl().get(), name_});
      COHORT_CHECK(found == claimed().end(), ErrorCode::already_exists, "[optimizer.", rule.name(),
                   "] expected a name that no other optimizer of variable '", variable.name(),
                   "' has, got '", name_, "' (rule '", rule.name(),
                   "'), which is that of a living one (rule '", found->second,
                   "'): they would share their slots; give one of them another name in its "
                   "options, or end the other one first");
    }
    for (const Variable& variable : variables)
      claimed().emplace(Key(variable.impl().get(), name_), rule.name());
    for (const Variable& variable : variables) variables_.push_back(variable.impl().get());
  }
  ~ClaimedName() {
    const Lock lock(mutex());
    for (const VariableImpl* variable : variables_) claimed().erase({variable, name_});
  }
  ClaimedName(const ClaimedName&) = delete;
  ClaimedName& operator=(const ClaimedName&) = delete;
  const std::string& get() const { return name_; }

 private:
  using Key = std::pair<const VariableImpl*, std::string>;
  static Mutex& mutex() {
    static Mutex one;
    return one;
  }
  // The rules of the living optimizers.
  static std::map<Key, std::string_view>& claimed() {
    static auto& all = *new std::map<Key, std::string_view>();  // optimizers may outlive it
    return all;
  }

  const std::string name_;
  std::vector<const VariableImpl*> variables_;  // the optimizer keeps them alive
};

}  // namespace cohort::optimizer
