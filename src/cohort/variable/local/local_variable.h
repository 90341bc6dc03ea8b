// SPDX-License-Identifier: Apache-2.0
// A variable whose value and slots are in this process.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cohort/core/mutex.h"
#include "cohort/function/local_tensors.h"
#include "cohort/variable/variable.h"
#include "cohort/variable/variable_home.h"
#include "cohort/variable/variable_state.h"

namespace cohort::variable {

// copy, assign and apply are thread-safe with each other; a step that computes with tensor() must
// not run at the same time as an update, since it would see half of it.
class LocalVariable final : public VariableImpl {
 public:
  LocalVariable(std::string name, at::Tensor value, bool is_trainable);

  const std::string& name() const override { return name_; }
  const TensorSpec& spec() const override { return spec_; }
  bool is_trainable() const override { return is_trainable_; }
  const at::Tensor& tensor() const override { return state_.value(); }
  void check_tensor_is_current(std::string_view) const override {}
  at::Tensor copy() const override;
  std::shared_ptr<VariableHome> home() const override;
  void write(const VariableWrite& write);
  VariableRecord record(const StateWalk& walk) const;
  void take(const VariableRecord& record);
  VariableState::Reserve reserve(const SlotKey& key, const at::Tensor& gradient,
                                 std::span<const double> hyper) const;
  void apply(const SlotKey& key, VariableState::Reserve reserve, std::span<const double> hyper);

 private:
  const std::string name_;
  const TensorSpec spec_;
  const bool is_trainable_;
  mutable Mutex mutex_;
  // Its value is always the same tensor; the mutex guards what that refers to, and the slots.
  VariableState state_;
  const function::LocalTensorName named_;  // names it in errors of a trace
};

// The home of all local variables of this process.
class LocalHome final : public VariableHome {
 public:
  void check_use(std::string_view, std::string_view) const override {}
  std::vector<at::Tensor> read(std::span<const Variable> variables) const override;
  void export_state(std::span<const Variable> variables, const StateWalk& walk,
                    const TakeRecord& take) const override;
  void import_state(const Variable& variable, const VariableRecord& record) override;
  void write(std::span<const VariableWrite> writes) override;
  void apply(const SlotKey& key, std::span<const Update> updates,
             std::span<const double> hyper) override;
};

}  // namespace cohort::variable
