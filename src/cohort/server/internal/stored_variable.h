// SPDX-License-Identifier: Apache-2.0
// One variable of a parameter server with its slots.
//
// A pull takes a reference to the value and sends from it with no lock and no copy; an update that
// finds the value referenced writes into a spare buffer instead, so a reader always sees one whole
// version.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cohort/core/mutex.h"
#include "cohort/core/resource_host.h"
#include "cohort/rpc/control.h"
#include "cohort/variable/update_rule.h"

namespace cohort::server {

// Thread-safe.
class StoredVariable {
 public:
  explicit StoredVariable(const rpc::VariableSpec& spec);

  const std::string& name() const { return name_; }
  const TensorSpec& spec() const { return spec_; }
  // A version that never changes.
  at::Tensor snapshot() const;
  // Throws before anything changes when the arguments do not fit.
  void check_apply(const UpdateRule& rule, const at::Tensor& gradient,
                   std::span<const double> hyper) const;
  void check_assign(const at::Tensor& value) const;
  void check_rows(const at::Tensor& ids, const at::Tensor& rows) const;
  // `slots_of`: the rule's name with its optimizer's number, "adam#2"; others have others.
  void apply(const UpdateRule& rule, std::string_view slots_of, const at::Tensor& gradient,
             std::span<const double> hyper);
  void assign(AssignKind kind, const at::Tensor& value);
  void scatter_add(const at::Tensor& ids, const at::Tensor& rows);

 private:
  // A buffer nobody else refers to, of the value's spec; its content is arbitrary.
  at::Tensor take_spare() COHORT_REQUIRES(mutex_);
  // Makes `next` the value and keeps the old buffer for later.
  void replace(at::Tensor next) COHORT_REQUIRES(mutex_);
  bool is_shared() const COHORT_REQUIRES(mutex_);

  const std::string name_;
  const TensorSpec spec_;
  mutable Mutex mutex_;
  at::Tensor value_ COHORT_GUARDED_BY(mutex_);
  std::vector<at::Tensor> retired_
      COHORT_GUARDED_BY(mutex_);  // old buffers, perhaps still being sent
  std::map<std::string, std::vector<at::Tensor>, std::less<>> slots_
      COHORT_GUARDED_BY(mutex_);  // by rule and optimizer
};

}  // namespace cohort::server
