// SPDX-License-Identifier: Apache-2.0
// A named value that steps read and update (tf.Variable), in this process or on a parameter server.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Scalar.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cohort/core/export.h"
#include "cohort/core/tensor_spec.h"

namespace cohort {

class VariableHome;  // variable/variable_home.h

// When the values that the replicas have of a variable become one (tf.VariableSynchronization).
// on_write: an assignment in cross-replica context writes all replicas' values; one in a replica is
// combined with those of the other replicas, if there is an aggregation, and written to all.
// on_read: in run(), each replica writes and reads its own value; read() in cross-replica context
// combines them, and assign() there sets all of them so that read() returns the assigned value.
// `automatic` is on_write. `none` is only for variables that have one value.
enum class VariableSynchronization : std::uint8_t { automatic, none, on_write, on_read };
// How values of several replicas become one (tf.VariableAggregation). With `none` there is no such
// way: assign*() in run() changes only the value of the replica that calls it, and replicas that
// assign different values then stay different; if the variable is synchronized on read, read() in
// cross-replica context throws invalid_argument.
enum class VariableAggregation : std::uint8_t { none, sum, mean, only_first_replica };

// How the values that replicas have of one variable belong together. A value type.
struct VariableReplication {
  VariableSynchronization synchronization = VariableSynchronization::automatic;
  VariableAggregation aggregation = VariableAggregation::none;
};

// A kind of variable: local, remote or mirrored; later sharded. Thread-safe.
class COHORT_API VariableImpl {
 public:
  virtual ~VariableImpl() = default;
  virtual const std::string& name() const = 0;
  virtual const TensorSpec& spec() const = 0;
  virtual bool is_trainable() const = 0;
  virtual VariableReplication replication() const { return {}; }
  // The tensor that steps compute with: the value itself, a stand-in on the coordinator, or the
  // component of the current replica. It is the same tensor at every call in one replica.
  virtual const at::Tensor& tensor() const = 0;
  // Other tensors through which a loss may depend on the variable: the components that other
  // replicas compute with. All have one shape and dtype.
  virtual std::vector<at::Tensor> other_tensors() const { return {}; }
  // Throws failed_precondition, naming the call, if tensor() may not have the current value.
  virtual void check_tensor_is_current(std::string_view call) const = 0;
  // A copy of tensor() without a gradient; undefined where tensor() may not have the current value.
  virtual at::Tensor copy() const = 0;
  // Who keeps the value, and reads and updates it; always the same. failed_precondition if it is
  // gone: the variable's strategy was destroyed.
  virtual std::shared_ptr<VariableHome> home() const = 0;
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
  // As the variable was made, but on_write for `automatic` if each replica has a component.
  VariableSynchronization synchronization() const { return impl_->replication().synchronization; }
  VariableAggregation aggregation() const { return impl_->replication().aggregation; }
  // A copy of the current value (tf.Variable.read_value()). If the variable is trainable and
  // gradients are enabled, gradients flow from the copy to the variable, as from tensor(); detach()
  // the copy for out= operators, and for sums over many steps. For a variable on a server,
  // gradients flow inside a step, traced or eager, and in run() of its strategy. Elsewhere the copy
  // is a plain value, and Optimizer::minimize() refuses a loss that depends only on such copies.
  at::Tensor read() const;
  // Inside a step, the value that this step reads. Elsewhere, the tensor of a variable on a server
  // is a stand-in, for its spec and requires_grad_(): it does not have the current value, which
  // read() returns. So schedule(), run_epoch(), fetch(), assign*() of a variable on a server and
  // ParameterServerStrategy::variable() throw invalid_argument for it, and for what was computed
  // from it with a graph. They cannot detect what was computed without a graph, under NoGradGuard
  // or from a variable that is not trainable: v.assign(v.tensor() + 1) outside a step is wrong.
  //
  // For a variable with a component for each replica: the component of the replica that runs here;
  // in cross-replica context, and where no strategy is current, that of replica 0. Throws
  // failed_precondition inside the scope, or a replica, of a different strategy.
  const at::Tensor& tensor() const { return impl_->tensor(); }
  // These throw invalid_argument, and send nothing, if the dtype or the shape is not the
  // variable's. In a replica context of several replicas, a variable of their strategy combines
  // their values as its VariableAggregation says; any other one throws unimplemented. Outside a
  // step, compute the value from read(), not from tensor().
  void assign(const at::Tensor& value) const;
  void assign_add(const at::Tensor& value) const;
  void assign_sub(const at::Tensor& value) const;
  // The same for a number and a variable of one number. Equal numbers in all replicas are one value
  // that they share, of which there is a mean but, except for 0, no sum: that throws
  // invalid_argument. So does a fractional type for integers, and a number that the dtype cannot
  // hold.
  void assign(const at::Scalar& number) const;
  void assign_add(const at::Scalar& number) const;
  void assign_sub(const at::Scalar& number) const;
  // Change rows: row indices[i] of the first dimension by values[i], in this order if a row comes
  // several times (tf.Variable.scatter_add and so on). `indices`: int64 or int32 [n]; `values`:
  // [n, the other dimensions]. In a replica context of several replicas the rows of all of them
  // are applied, of a mean divided by their number first; min, max and update need aggregation none
  // or only_first_replica. Throw as assign() does; invalid_argument for a row that does not exist;
  // unimplemented for a variable that is synchronized on read with any number of replicas, unless
  // they share its one value (one device).
  void scatter_add(const at::Tensor& indices, const at::Tensor& values) const;
  void scatter_sub(const at::Tensor& indices, const at::Tensor& values) const;
  void scatter_mul(const at::Tensor& indices, const at::Tensor& values) const;
  void scatter_div(const at::Tensor& indices, const at::Tensor& values) const;
  void scatter_min(const at::Tensor& indices, const at::Tensor& values) const;
  void scatter_max(const at::Tensor& indices, const at::Tensor& values) const;
  void scatter_update(const at::Tensor& indices, const at::Tensor& values) const;
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
