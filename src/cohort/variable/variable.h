// SPDX-License-Identifier: Apache-2.0
// A named value that steps read and update (tf.Variable), in this process or on a parameter server.
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
  // Throws failed_precondition, naming the call, if tensor() may not have the current value.
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

// A shared handle; copies are the same variable. Thread-safe, except that a handle itself must not
// be assigned while it is used, and a local variable must not be updated while a step computes with
// its tensor().
//
// Outside a trace, read() and assign*() of a variable on a server send a message and wait for the
// answer, under ClusterOptions::data_timeout. They throw unavailable or deadline_exceeded, naming
// the server; data_loss for a damaged answer; failed_precondition inside a different strategy's
// scope, and after the strategy is destroyed.
class COHORT_API Variable {
 public:
  explicit Variable(std::shared_ptr<VariableImpl> impl) : impl_(std::move(impl)) {}

  const std::string& name() const { return impl_->name(); }
  const TensorSpec& spec() const { return impl_->spec(); }
  bool is_trainable() const { return impl_->is_trainable(); }
  // A copy of the current value (tf.Variable.read_value()). If the variable is trainable and
  // gradients are enabled, gradients flow from the copy to the variable, as from tensor(); detach()
  // the copy for out= operators, and for sums over many steps. For a variable on a server,
  // gradients flow inside a step, traced or eager, and in run() of its strategy. Elsewhere the copy
  // is a plain value, and Optimizer::minimize() refuses a loss that depends only on such copies.
  at::Tensor read() const { return impl_->read(); }
  // Inside a step, the value that this step reads. Elsewhere, the tensor of a variable on a server
  // is a stand-in, for its spec and requires_grad_(): it does not have the current value, which
  // read() returns. So schedule(), run_epoch(), fetch(), assign*() of a variable on a server and
  // ParameterServerStrategy::variable() throw invalid_argument for it, and for what was computed
  // from it with a graph. They cannot detect what was computed without a graph, under NoGradGuard or
  // from a variable that is not trainable: v.assign(v.tensor() + 1) outside a step is wrong.
  const at::Tensor& tensor() const { return impl_->tensor(); }
  // These throw invalid_argument, and send nothing, if the dtype or the shape is not the
  // variable's; and unimplemented in a replica context of several replicas, whose values are not
  // reduced yet. Outside a step, compute the value from read(), not from tensor().
  void assign(const at::Tensor& value) const { impl_->assign(AssignKind::assign, value); }
  void assign_add(const at::Tensor& value) const { impl_->assign(AssignKind::add, value); }
  void assign_sub(const at::Tensor& value) const { impl_->assign(AssignKind::sub, value); }
  const std::shared_ptr<VariableImpl>& impl() const { return impl_; }
  bool operator==(const Variable& other) const { return impl_ == other.impl_; }

 private:
  std::shared_ptr<VariableImpl> impl_;
};

// A variable in this process, with its optimizers' slots. It uses `value` itself as its tensor, not
// a copy. If `value` was computed from read() of other variables, it loses its autograd graph; any
// other value with a graph throws invalid_argument for a trainable variable. Workers do not have
// the variable, so a scheduled step that uses it is refused: use
// ParameterServerStrategy::variable().
COHORT_API Variable local_variable(std::string name, at::Tensor value, bool is_trainable = true);

}  // namespace cohort
