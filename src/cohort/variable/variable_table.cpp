// SPDX-License-Identifier: Apache-2.0
#include "cohort/variable/variable_table.h"

#include "cohort/core/error.h"

namespace cohort {
namespace {

const void* storage_of(const at::Tensor& tensor) {
  return tensor.defined() && tensor.has_storage() ? tensor.storage().unsafeGetStorageImpl()
                                                  : nullptr;
}

template <class Map, class Key>
auto* lookup_in(const Map& map, const Key& key) {
  const auto found = map.find(key);
  return found == map.end() ? nullptr : found->second;
}

}  // namespace

void VariableTable::add(const Variable& variable, function::TracedVariable how) {
  how.name = variable.name();
  how.is_trainable = variable.is_trainable();
  how.tensor = variable.tensor();
  auto entry = std::make_unique<const Entry>(Entry{variable, std::move(how)});
  const Lock lock(mutex_);
  check_new_locked(variable);
  by_name_.emplace(entry->variable.name(), entry.get());
  by_storage_.emplace(storage_of(variable.tensor()), entry.get());
  entries_.push_back(std::move(entry));
}

void VariableTable::check_new(const Variable& variable) const {
  const Lock lock(mutex_);
  check_new_locked(variable);
}

void VariableTable::check_new_locked(const Variable& variable) const {
  const at::Tensor& tensor = variable.tensor();
  COHORT_CHECK(
      tensor.storage_offset() == 0, ErrorCode::invalid_argument,
      "[variable.create] expected a tensor at the start of its memory, got one at element ",
      tensor.storage_offset(), " (variable '", variable.name(),
      "'); a slice of a larger tensor cannot be a variable, clone() it");
  COHORT_CHECK(lookup_in(by_name_, variable.name()) == nullptr, ErrorCode::already_exists,
               "[variable.create] expected a new name, got '", variable.name(),
               "', which is another variable's; give the model or the variable a name of its own");
  const Entry* other = lookup_in(by_storage_, storage_of(tensor));
  COHORT_CHECK(
      other == nullptr, ErrorCode::already_exists,
      "[variable.create] expected memory of its own, got that ", "of variable '",
      other->variable.name(), "' (variable '", variable.name(),
      "'); register one tensor under both names of the model, which makes it one variable, and "
      "clone() a tensor that the factory of a model has captured");
}

const VariableTable::Entry* VariableTable::find(std::string_view name) const {
  const Lock lock(mutex_);
  return lookup_in(by_name_, name);
}

const VariableTable::Entry* VariableTable::find_storage(const void* storage) const {
  const Lock lock(mutex_);
  return lookup_in(by_storage_, storage);
}

const VariableTable::Entry* VariableTable::find(const at::Tensor& tensor) const {
  return find_storage(storage_of(tensor));
}

std::vector<Variable> VariableTable::variables() const {
  const Lock lock(mutex_);
  std::vector<Variable> result;
  result.reserve(entries_.size());
  for (const auto& entry : entries_) result.push_back(entry->variable);
  return result;
}

std::function<const function::TracedVariable*(const void* storage)> VariableTable::lookup() const {
  return [this](const void* storage) -> const function::TracedVariable* {
    const Entry* entry = find_storage(storage);
    return entry == nullptr ? nullptr : &entry->traced;
  };
}

}  // namespace cohort
