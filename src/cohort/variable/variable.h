// SPDX-License-Identifier: Apache-2.0
// A value with an identity that steps read and update (tf.Variable), wherever it lives.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cohort/core/export.h"
#include "cohort/core/resource_host.h"
#include "cohort/core/tensor_spec.h"
#include "cohort/variable/update_rule.h"

namespace cohort {

// A kind of variable: local or remote; later mirrored, sync-on-read, sharded. Thread-safe.
class COHORT_API VariableImpl {
 public:
  virtual ~VariableImpl() = default;
  virtual const std::string& name() const = 0;
  virtual const TensorSpec& spec() const = 0;
  virtual bool is_trainable() const = 0;
  // The tensor that steps compute with: the value itself, or a stand-in on the coordinator. It is
  // the same tensor at every call.
  virtual const at::Tensor& tensor() const = 0;
  // Throws failed_precondition, naming the call, where tensor() may not have the current value.
  virtual void check_tensor_is_current(std::string_view call) const = 0;
  // The current value, a copy. If the variable is trainable and gradients are enabled, a gradient
  // of the copy is one of tensor(); on a server only where it is read in a step.
  virtual at::Tensor read() const = 0;
  virtual void assign(AssignKind kind, const at::Tensor& value) = 0;
  // One step of `rule`; inside a trace it is recorded. `hyper`: 0-dim float64 tensors, read at
  // every call of a traced step.
  virtual void apply(const UpdateRule& rule, const at::Tensor& gradient,
                     std::span<const at::Tensor> hyper) = 0;
};

// A shared handle; copies are the same variable. Thread-safe, except for assigning a handle itself;
// a step that computes with a local variable's tensor() must not run at the same time as an update
// of it.
//
// Outside a trace, read() and assign*() of a variable on a server are calls over the network under
// ClusterOptions::data_timeout: unavailable and deadline_exceeded name the server; data_loss for a
// broken answer; failed_precondition inside another strategy's scope and after the strategy is
// destroyed.
class COHORT_API Variable {
 public:
  explicit Variable(std::shared_ptr<VariableImpl> impl) : impl_(std::move(impl)) {}

  const std::string& name() const { return impl_->name(); }
  const TensorSpec& spec() const { return impl_->spec(); }
  bool is_trainable() const { return impl_->is_trainable(); }
  // The current value, a copy in memory of its own (tf.Variable.read_value()). If the variable is
  // trainable and gradients are enabled, they flow from the copy to the variable, as from tensor();
  // detach() the copy for out= operators, and for sums over many steps. For a variable on a server
  // this holds in a step, traced or eager, and in run() of its strategy. Elsewhere the copy is a
  // plain value, and Optimizer::minimize() refuses a loss that depends on such copies alone.
  at::Tensor read() const { return impl_->read(); }
  // Inside a step: the value as this step reads it. Elsewhere the tensor of a variable on a server
  // is a stand-in whose numbers are not kept current: read() returns the current ones.
  const at::Tensor& tensor() const { return impl_->tensor(); }
  // A value of the variable's own dtype and shape: invalid_argument otherwise, and nothing is sent.
  // unimplemented in a replica context of several replicas, whose values are not reduced yet.
  void assign(const at::Tensor& value) const { impl_->assign(AssignKind::assign, value); }
  void assign_add(const at::Tensor& value) const { impl_->assign(AssignKind::add, value); }
  void assign_sub(const at::Tensor& value) const { impl_->assign(AssignKind::sub, value); }
  const std::shared_ptr<VariableImpl>& impl() const { return impl_; }
  bool operator==(const Variable& other) const { return impl_ == other.impl_; }

 private:
  std::shared_ptr<VariableImpl> impl_;
};

// A variable in this process, with its slots. It takes `value` itself as its tensor; what was
// computed from read() of other variables loses its graph, and any other result of a computation is
// invalid_argument for a trainable variable. Workers do not have it, so a scheduled step that uses
// it is refused; for such a step use ParameterServerStrategy::variable().
COHORT_API Variable local_variable(std::string name, at::Tensor value, bool is_trainable = true);

}  // namespace cohort
