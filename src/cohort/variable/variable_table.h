// SPDX-License-Identifier: Apache-2.0
// The variables of one program, found by the memory of their tensors: so a trace recognizes that a
// tensor that the body uses is a variable.
#pragma once

#include <memory>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "cohort/core/mutex.h"
#include "cohort/function/trace.h"
#include "cohort/variable/variable.h"

namespace cohort {

// Thread-safe. Entries are kept and returned pointers stay valid until the table is destroyed.
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

  // nullptr when there is none.
  const Entry* find(std::string_view name) const;
  const Entry* find_storage(const void* storage) const;
  const Entry* find(const at::Tensor& tensor) const;
  // In the order they were added.
  std::vector<Variable> variables() const;

  // For TraceOptions::variable_of; the table must outlive it.
  std::function<const function::TracedVariable*(const void* storage)> lookup() const;

 private:
  void check_new_locked(const Variable& variable) const COHORT_REQUIRES(mutex_);

  mutable Mutex mutex_;
  std::vector<std::unique_ptr<const Entry>> entries_ COHORT_GUARDED_BY(mutex_);
  std::unordered_map<std::string_view, const Entry*> by_name_ COHORT_GUARDED_BY(mutex_);
  std::unordered_map<const void*, const Entry*> by_storage_ COHORT_GUARDED_BY(mutex_);
};

}  // namespace cohort
