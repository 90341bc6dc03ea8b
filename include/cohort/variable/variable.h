// SPDX-License-Identifier: Apache-2.0
// A named value that steps read and update (tf.Variable), in this process or on a parameter server.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Scalar.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cohort/core/export.h"
#include "cohort/core/tensor_spec.h"

namespace cohort {

class Variable;
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

// A kind of variable: local, remote, mirrored or sharded. Thread-safe.
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
  // Rows of a table that the current step has looked up, through which its loss depends on them.
  struct LookedUp {
    at::Tensor rows;  // [n, …], a leaf
    at::Tensor keys;  // int64 [n]
  };
  virtual std::vector<LookedUp> looked_up() const { return {}; }
  // Whether it has rows by key, and no tensor() with a value.
  virtual bool is_table() const { return false; }
  // Whether tensor() has the current value, here and now.
  virtual bool is_tensor_current() const = 0;
  // Throws failed_precondition, naming the call, if tensor() may not have the current value.
  virtual void check_tensor_is_current(std::string_view call) const = 0;
  // A copy of tensor() without a gradient; undefined where tensor() may not have the current value.
  virtual at::Tensor copy() const = 0;
  // Who keeps the value, and reads and updates it; always the same. failed_precondition if it is
  // gone: the variable's strategy was destroyed.
  virtual std::shared_ptr<VariableHome> home() const = 0;
  // The parts of its rows, in order, if its rows are divided.
  virtual std::span<const Variable> shards() const;

  // The variable of which this is a shard, if there is one.
  std::shared_ptr<const VariableImpl> container() const;
  // Returns false, and changes nothing, if this is a shard already.
  bool set_container(const std::shared_ptr<const VariableImpl>& container) const;

 private:
  mutable std::weak_ptr<const VariableImpl> container_;
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
  // Only inside a function that ClusterCoordinator::schedule() traces: at this place its worker
  // makes the updates of the step so far, and then waits until the value, one number, is above 0;
  // it asks the variable's server every few milliseconds. So a program can hold steps back until it
  // assigns a flag. The worker runs no other closure meanwhile, unless
  // CoordinatorOptions::closures_per_worker lets it. If the closure is cancelled, the
  // wait ends. With CoordinatorOptions::run_eagerly, where no closure runs meanwhile, it throws
  // deadline_exceeded if no other thread or task has assigned the flag within the progress timeout.
  // Throws invalid_argument for a variable of several numbers or of strings; failed_precondition
  // elsewhere: call read() in a loop there.
  void wait_until_positive() const;
  const std::shared_ptr<VariableImpl>& impl() const { return impl_; }
  bool operator==(const Variable& other) const { return impl_ == other.impl_; }

 private:
  std::shared_ptr<VariableImpl> impl_;
};

// A variable whose rows are divided into shards (tf.distribute's ShardedVariable): a view of a
// variable that ParameterServerStrategy has divided, or of several variables as one. A value type.
// Thread-safe. Calls outside a step throw as those of Variable do.
class COHORT_API ShardedVariable {
 public:
  // Makes one variable of the rows of all shards, in this order, as trainable as the first one.
  // Throws invalid_argument unless there is a shard, all have one dtype and the same sizes after
  // the first, and none is a shard already. Steps and optimizers use the shards, not the whole.
  // As in tf, an assignment goes to one shard after the other: those before a shard that refuses
  // its rows have been assigned. The scatter calls, as in tf, need shards as a strategy makes them,
  // of equal numbers of rows or with one row more in the first ones: unimplemented otherwise.
  ShardedVariable(std::string name, std::vector<Variable> shards);
  // A variable that is whole has one shard: itself.
  explicit ShardedVariable(Variable variable) : variable_(std::move(variable)) {}

  // All rows as one variable: its read(), assign() and so on concern all shards.
  const Variable& variable() const { return variable_; }
  // Each is a variable that is read, assigned and saved on its own.
  std::vector<Variable> shards() const;
  // The first row of each shard.
  std::vector<std::int64_t> offsets() const;

  // Reads one row; a negative number counts from the end. Throws out_of_range.
  at::Tensor operator[](std::int64_t row) const;
  // Reads rows start, start + step, … before stop, as a Python slice does: negative numbers count
  // from the end, numbers beyond the rows are cut to them. Throws invalid_argument for step 0.
  at::Tensor slice(std::optional<std::int64_t> start, std::optional<std::int64_t> stop,
                   std::int64_t step = 1) const;
  // Reads rows; `indices`: int64 or int32 [n]. The result has the order of the indices, other than
  // in tf, whose result has the order of the shards. Needs shards as the scatter calls do. Throws
  // invalid_argument for a row that does not exist.
  at::Tensor sparse_read(const at::Tensor& indices) const;

 private:
  Variable variable_;
};

// Reads rows of a variable (tf.nn.embedding_lookup): `ids` are int64 or int32 of any sizes [d…],
// the result is [d…, the sizes of a row]. Each parameter server is asked once, for the rows that
// occur. Inside a step, gradients flow to the variable. A row whose L2 norm is above `max_norm` is
// scaled to it in the result. Throws invalid_argument for a row that does not exist; inside a
// traced step, when it runs.
COHORT_API at::Tensor embedding_lookup(const Variable& variable, const at::Tensor& ids,
                                       std::optional<double> max_norm = {});

// How the rows of one bag become one: their weighted sum, divided by the sum of the weights, or by
// the root of the sum of their squares (tf's combiners).
enum class EmbeddingCombiner : std::uint8_t { sum, mean, sqrtn };
struct SparseLookupOptions {
  // Floating-point, with the same indices as the ids; undefined: each weight is 1.
  at::Tensor weights = {};
  EmbeddingCombiner combiner = EmbeddingCombiner::mean;
  std::optional<double> max_norm = {};
  // In safe_embedding_lookup_sparse() an empty bag gets this id's row; unset: zeros.
  std::optional<std::int64_t> default_id = {};
};
// One row for each bag of ids (tf.nn.embedding_lookup_sparse). `ids`: a sparse int64 tensor [bags,
// n] whose indices ascend; the ids with the first index i are bag i. The result has a row for each
// bag up to the last one that has an id. Throws as embedding_lookup() does; invalid_argument for
// weights that do not fit the ids.
COHORT_API at::Tensor embedding_lookup_sparse(const Variable& variable, const at::Tensor& ids,
                                              const SparseLookupOptions& options = {});
// The same for ids that may be missing (tf.nn.safe_embedding_lookup_sparse): ids below 0 are left
// out and, unless the combiner is sum, those with a weight of 0 or less. Each bag has a row. `ids`:
// [d…, n]; the result is [d…, the sizes of a row].
COHORT_API at::Tensor safe_embedding_lookup_sparse(const Variable& variable, const at::Tensor& ids,
                                                   const SparseLookupOptions& options = {});

// A variable in this process, with its optimizers' slots. It uses `value` itself as its tensor, not
// a copy. If `value` was computed from read() of other variables, it loses its autograd graph; any
// other value with a graph throws invalid_argument for a trainable variable. Workers do not have
// the variable, so a scheduled step that uses it is refused: use
// ParameterServerStrategy::variable().
COHORT_API Variable local_variable(std::string name, at::Tensor value, bool is_trainable = true);

}  // namespace cohort
