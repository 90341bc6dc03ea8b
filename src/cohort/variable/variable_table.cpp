// SPDX-License-Identifier: Apache-2.0
#include "cohort/variable/variable_table.h"

#include <utility>

#include "cohort/core/error.h"

namespace cohort {
namespace {

const void* storage_of(const at::Tensor& tensor) {
  return tensor.defined() && tensor.has_storage() ? tensor.storage().unsafeGetStorageImpl()
                                                  : nullptr;
}

}  // namespace

void VariableTable::add(const Variable& variable, function::TracedVariable how) {
  how.name = variable.name();
  how.is_trainable = variable.is_trainable();
  how.tensor = variable.tensor();
  auto entry = std::make_unique<const Entry>(Entry{variable, std::move(how)});
  const Lock lock(mutex_);
  check_new_locked(variable);
  by_name_.emplace(entry->variable.name(), entries_.size());
  by_storage_.emplace(storage_of(variable.tensor()), entries_.size());
  entries_.push_back(std::move(entry));
}

// Allocates before it changes anything.
std::vector<VariableTable::EntryPtr> VariableTable::take_if(
    const std::function<bool(const Entry& entry)>& is_unused) {
  const Lock lock(mutex_);
  std::vector<EntryPtr> taken;
  std::vector<EntryPtr> kept;
  for (const EntryPtr& entry : entries_) {
    const bool is_taken = entry.use_count() == 1 && is_unused(*entry);
    (is_taken ? taken : kept).push_back(entry);
  }
  for (const EntryPtr& entry : taken) {
    by_name_.erase(entry->variable.name());
    by_storage_.erase(storage_of(entry->traced.tensor));
  }
  for (std::size_t i = 0; i < kept.size(); ++i) {
    by_name_.find(kept[i]->variable.name())->second = i;
    by_storage_.find(storage_of(kept[i]->traced.tensor))->second = i;
  }
  entries_.swap(kept);
  return taken;
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
  COHORT_CHECK(
      lookup_in(by_name_, variable.name()) == nullptr, ErrorCode::already_exists,
      "[variable.create] expected a new name, got '", variable.name(),
      "', which is another variable's; give the model or the variable a name of its own, or "
      "first drop the other one, with its optimizers and the functions that use it");
  const EntryPtr other = lookup_in(by_storage_, storage_of(tensor));
  COHORT_CHECK(
      other == nullptr, ErrorCode::already_exists,
      "[variable.create] expected memory of its own, got that ", "of variable '",
      other->variable.name(), "' (variable '", variable.name(),
      "'); register one tensor under both names of the model, which makes it one variable, and "
      "clone() a tensor that the factory of a model has captured");
}

VariableTable::EntryPtr VariableTable::find(std::string_view name) const {
  const Lock lock(mutex_);
  return lookup_in(by_name_, name);
}

VariableTable::EntryPtr VariableTable::find_storage(const void* storage) const {
  const Lock lock(mutex_);
  return lookup_in(by_storage_, storage);
}

VariableTable::EntryPtr VariableTable::find(const at::Tensor& tensor) const {
  return find_storage(storage_of(tensor));
}

std::vector<Variable> VariableTable::variables() const {
  const Lock lock(mutex_);
  std::vector<Variable> result;
  result.reserve(entries_.size());
  for (const auto& entry : entries_)
    if (!entry->variable.impl()->is_table()) result.push_back(entry->variable);
  return result;
}

std::vector<Variable> VariableTable::with_tables() const {
  const Lock lock(mutex_);
  std::vector<Variable> result;
  for (const auto& entry : entries_) result.push_back(entry->variable);
  return result;
}

std::function<const function::TracedVariable*(const void* storage)> VariableTable::lookup() const {
  return [this](const void* storage) -> const function::TracedVariable* {
    const EntryPtr entry = find_storage(storage);
    return entry == nullptr ? nullptr : &entry->traced;
  };
}

}  // namespace cohort
