// SPDX-License-Identifier: Apache-2.0
// A variable with one component for each replica of this process (tf's MirroredVariable and
// SyncOnReadVariable).
#pragma once

#include <ATen/core/Tensor.h>

#include <deque>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cohort/core/detail/effect_handler.h"
#include "cohort/core/detail/mutex.h"
#include "cohort/function/detail/local_tensors.h"
#include "cohort/variable/detail/variable_home.h"
#include "cohort/variable/detail/variable_state.h"
#include "cohort/variable/variable.h"

namespace cohort::internal {

class MirroredHome;

// Each replica uses its own component from its own thread. Calls for several components are
// thread-safe with each other; they must not run while a step computes with the variable.
class MirroredVariable final : public VariableImpl {
 public:
  struct Traits {
    bool is_trainable = true;
    VariableSynchronization synchronization = VariableSynchronization::on_write;
    VariableAggregation aggregation = VariableAggregation::none;
  };
  // One tensor for each replica, of one dtype and shape. Throws invalid_argument for tensors that
  // cannot be a variable's, and for traits that do not fit each other.
  MirroredVariable(std::string name, std::vector<at::Tensor> components, Traits traits,
                   std::shared_ptr<MirroredHome> home);

  const std::string& name() const override { return name_; }
  const TensorSpec& spec() const override { return spec_; }
  bool is_trainable() const override { return traits_.is_trainable; }
  // The component of the replica that runs here; the first one in cross-replica context.
  const at::Tensor& tensor() const override;
  // Throws in cross-replica context if the value is only known by a reduction (on_read).
  void check_tensor_is_current(std::string_view call) const override;
  at::Tensor copy() const override;
  std::shared_ptr<VariableHome> home() const override;

  const Traits& traits() const { return traits_; }
  bool is_on_read() const { return traits_.synchronization == VariableSynchronization::on_read; }
  std::size_t size() const { return states_.size(); }
  const at::Tensor& component(std::size_t i) const { return states_[i].value(); }

  // Throws invalid_argument if assign_all() must not be called, as for assign_add() of an on_read
  // variable that is summed. assign_all() itself does not check this.
  void check_assign_all(AssignKind kind) const;
  // In cross-replica context: every component, or its share of the value.
  void assign_all(AssignKind kind, const at::Tensor& value);
  void assign_component(std::size_t i, AssignKind kind, const at::Tensor& value);

  // As VariableState's; only the component's own replica, or one thread for all of them, calls it.
  VariableState::Fresh reserve(std::size_t i, const SlotKey& key,
                               std::span<const double> hyper) const;
  void apply(std::size_t i, const SlotKey& key, VariableState::Fresh fresh,
             const at::Tensor& gradient, std::span<const double> hyper);

 private:
  at::Tensor reduced() const;
  bool shares_memory(const at::Tensor& value) const;
  void write(std::size_t i, AssignKind kind, const at::Tensor& value);

  const std::string name_;
  const TensorSpec spec_;
  const Traits traits_;
  const std::shared_ptr<MirroredHome> home_;
  mutable Mutex mutex_;                          // held by calls for several components
  std::vector<VariableState> states_;            // never changes its size
  std::deque<function::LocalTensorName> names_;  // name it in errors of a trace
};

}  // namespace cohort::internal
