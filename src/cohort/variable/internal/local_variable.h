// SPDX-License-Identifier: Apache-2.0
// A variable whose value and slots are in this process.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "cohort/core/detail/mutex.h"
#include "cohort/function/detail/local_tensors.h"
#include "cohort/variable/variable.h"

namespace cohort::variable {

// read, assign and apply are thread-safe with each other; a step that computes with tensor() must
// not run at the same time as an update, since it would see half of it.
class LocalVariable final : public VariableImpl {
 public:
  LocalVariable(std::string name, at::Tensor value, bool is_trainable);

  const std::string& name() const override { return name_; }
  const TensorSpec& spec() const override { return spec_; }
  bool is_trainable() const override { return is_trainable_; }
  const at::Tensor& tensor() const override { return value_; }
  void check_tensor_is_current(std::string_view) const override {}
  at::Tensor read() const override;
  void assign(AssignKind kind, const at::Tensor& value) override;
  void apply(const UpdateRule& rule, const at::Tensor& gradient,
             std::span<const at::Tensor> hyper) override;

 private:
  at::Tensor copied() const;

  const std::string name_;
  const TensorSpec spec_;
  const bool is_trainable_;
  mutable Mutex mutex_;
  // The handle never changes; the mutex guards what it refers to.
  at::Tensor value_;
  const function::LocalTensorName named_;  // names it in errors of a trace
  std::map<std::string, std::vector<at::Tensor>, std::less<>> slots_ COHORT_GUARDED_BY(mutex_);
};

}  // namespace cohort::variable
