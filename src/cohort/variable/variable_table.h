// SPDX-License-Identifier: Apache-2.0
// The variables of one program, found by the memory of their tensors: how a trace knows that a
// tensor the body touches is a variable.
#pragma once

#include <memory>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "cohort/core/mutex.h"
#include "cohort/function/trace.h"
#include "cohort/variable/variable.h"

namespace cohort {

// Thread-safe. Entries stay until the table goes, so what it returns stays valid as long.
class COHORT_API VariableTable {
 public:
  struct Entry {
    Variable variable;
    function::TracedVariable traced;
  };

  // `how` says how a trace treats it; name, is_trainable and tensor are filled in here.
  // already_exists when the name is taken, or the tensor's memory is another variable's (two
  // tensors that share it: add one of them); invalid_argument for a slice of a larger tensor.
  void add(const Variable& variable, function::TracedVariable how = {});
  // Throws as add() would.
  void check_new(const Variable& variable) const;

  // nullptr when there is none.
  const Entry* find(std::string_view name) const;
  const Entry* find_storage(const void* storage) const;
  const Entry* find(const at::Tensor& tensor) const;
  // In the order they were added.
  std::vector<Variable> variables() const;

  // As TraceOptions::variable_of; the table must outlive it.
  std::function<const function::TracedVariable*(const void* storage)> lookup() const;

 private:
  void check_new_locked(const Variable& variable) const COHORT_REQUIRES(mutex_);

  mutable Mutex mutex_;
  std::vector<std::unique_ptr<const Entry>> entries_ COHORT_GUARDED_BY(mutex_);
  std::unordered_map<std::string_view, const Entry*> by_name_ COHORT_GUARDED_BY(mutex_);
  std::unordered_map<const void*, const Entry*> by_storage_ COHORT_GUARDED_BY(mutex_);
};

}  // namespace cohort
