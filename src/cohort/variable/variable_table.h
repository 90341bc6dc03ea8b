// SPDX-License-Identifier: Apache-2.0
// The variables of one program, found by the memory of their tensors: so a trace recognizes that a
// tensor that the body uses is a variable.
#pragma once

#include <functional>
#include <memory>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "cohort/core/mutex.h"
#include "cohort/function/trace.h"
#include "cohort/variable/variable.h"

namespace cohort {

// Thread-safe.
class COHORT_API VariableTable {
 public:
  struct Entry {
    Variable variable;
    function::TracedVariable traced;
  };

  // `how` says how a trace treats it; name, is_trainable and tensor are filled in here.
  // already_exists if the name is taken, or if the tensor's memory belongs to another variable (add
  // only one of two tensors that share memory); invalid_argument for a slice of a larger tensor.
  void add(const Variable& variable, function::TracedVariable how = {});
  // Throws like add().
  void check_new(const Variable& variable) const;

  using EntryPtr = std::shared_ptr<const Entry>;
  // nullptr when there is none.
  EntryPtr find(std::string_view name) const;
  EntryPtr find_storage(const void* storage) const;
  EntryPtr find(const at::Tensor& tensor) const;
  // In the order they were added, without those of VariableImpl::is_table(), which have no value
  // that a step could read or write as a whole.
  std::vector<Variable> variables() const;
  std::vector<Variable> with_tables() const;

  // Removes and returns the entries for which this is true. Entries that somebody has found and
  // still holds are not asked for. `is_unused` must not call the table.
  std::vector<EntryPtr> take_if(const std::function<bool(const Entry& entry)>& is_unused);

  // For TraceOptions::variable_of; the table must outlive it. A pointer is valid while the tensor
  // exists with whose storage it was found, and its variable is in the table.
  std::function<const function::TracedVariable*(const void* storage)> lookup() const;

 private:
  void check_new_locked(const Variable& variable) const COHORT_REQUIRES(mutex_);
  template <class Map, class Key>
  EntryPtr lookup_in(const Map& map, const Key& key) const COHORT_REQUIRES(mutex_) {
    const auto found = map.find(key);
    return found == map.end() ? nullptr : entries_[found->second];
  }

  mutable Mutex mutex_;
  std::vector<EntryPtr> entries_ COHORT_GUARDED_BY(mutex_);
  // Their indices in `entries_`.
  std::unordered_map<std::string_view, std::size_t> by_name_ COHORT_GUARDED_BY(mutex_);
  std::unordered_map<const void*, std::size_t> by_storage_ COHORT_GUARDED_BY(mutex_);
};

}  // namespace cohort
