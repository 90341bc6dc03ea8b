// SPDX-License-Identifier: Apache-2.0
// Who keeps the values of a group of variables: this process, or the parameter servers of one
// strategy. A call for many variables asks each home once, and a home asks each server once.
//
//   apply_updates({rule, "adam"}, {{kernel, kernel_gradient}, {bias, bias_gradient}}, hyper);
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cohort/core/effect_handler.h"
#include "cohort/core/export.h"
#include "cohort/variable/attached_states.h"
#include "cohort/variable/state_walk.h"
#include "cohort/variable/variable.h"
#include "cohort/variable/variable_state.h"

namespace cohort {

struct Update {
  Variable variable;
  at::Tensor gradient;
  bool is_temporary = false;  // nobody else has the gradient's memory: it may be overwritten
};
// An assignment, or a change of some rows (variable/rows.h).
struct VariableWrite {
  Variable variable;
  internal::Effect::Kind kind = internal::Effect::Kind::assign;
  at::Tensor value;         // rows, if there are ids
  at::Tensor row_ids = {};  // int32 or int64 [n], of a change of rows
  // The value is a number of the host: if all replicas assign an equal one, it is one value that
  // they share.
  bool is_number = false;

  internal::Effect effect() const { return internal::write_effect(kind, value, row_ids); }
};

// Records the calls for variables that a traced function makes, if the program will run in the
// variables' own process. The arguments are those of VariableHome; each run reads the
// hyperparameters. Used only from the tracing thread.
class COHORT_API UpdateRecorder {
 public:
  virtual ~UpdateRecorder() = default;
  virtual void write(std::span<const VariableWrite> writes) = 0;
  virtual void apply(const SlotKey& key, std::span<const Update> updates,
                     std::span<const at::Tensor> hyper) = 0;
  // VariableHome::sum_over_replicas(), of gradients that are defined in all replicas or in none.
  virtual std::vector<at::Tensor> sum_over_replicas(std::span<const Update> gradients) = 0;
};

// Who wants gradients while the backward pass that computes them still runs. Made for one backward
// pass, whose gradients all go into one apply_updates() afterwards, with no other code of the user
// between; it lives until that has returned or thrown. Used only from the thread of the backward
// pass.
class COHORT_API GradientSink {
 public:
  virtual ~GradientSink() = default;
  // The gradient of variable `i` is complete; undefined if there is none. Must not throw, and must
  // not change it.
  virtual void take(std::size_t i, const at::Tensor& gradient) = 0;
  // The backward pass has ended without an error.
  virtual void finish() = 0;
};

// One for all local variables, and one for each strategy that has variables. The callers are the
// functions below: they have checked the arguments, no trace runs on this thread, and all variables
// of a call belong to this home. Thread-safe.
class COHORT_API VariableHome {
 public:
  virtual ~VariableHome() = default;
  // Throws if the calling thread must not call `method`: "read", "tensor", "assign", "scatter" or
  // "apply". `variable`: the name of one with which it is called, for the message.
  virtual void check_use(std::string_view method, std::string_view variable) const = 0;
  // Throws failed_precondition if the gradients of a loss that this thread has computed are not all
  // that Optimizer::minimize() must apply to the variable.
  virtual void check_can_minimize(const std::string& /*variable*/) const {}
  // Whether assign() and apply() in a replica context combine the values of all replicas.
  virtual bool reduces_over_replicas() const { return false; }
  // Whether other processes have the same variables and make the same calls.
  virtual bool has_workers() const { return false; }
  // The arguments of AtomicFile and commit().
  struct FileTurn {
    std::uint64_t order = 0;
    std::function<void()> check = {};
  };
  using WriteFile = std::function<void(const FileTurn& turn)>;
  // Calls `write`, which writes a file, in one of these processes; all throw what it throws.
  virtual void write_file(const WriteFile& write) const { write({}); }
  // Whether other strategies refuse the variables. Plain variables of this process are for all.
  virtual bool is_of_one_strategy() const { return reduces_over_replicas(); }
  // The current values, in memory of their own.
  virtual std::vector<at::Tensor> read(std::span<const Variable> variables) const = 0;
  // The current values of rows; `ids`: int64 [n] on the CPU, contiguous. For variables whose
  // tensor() has no current value here.
  virtual at::Tensor read_rows(const Variable& variable, const at::Tensor& ids) const {
    return read({&variable, 1})[0].index_select(0, ids);
  }
  // Whether assign() goes to the parts of a variable one after the other, each of which checks its
  // own value.
  virtual bool assigns_by_parts() const { return false; }
  // Whether a CacheVariableReadsScope keeps what read() returns.
  virtual bool may_cache_reads() const { return false; }
  // Gives the state of these variables, whole or in chunks of rows; see variable/state_walk.h.
  virtual void export_state(std::span<const Variable> variables, const StateWalk& walk,
                            const TakeRecord& take) const = 0;
  // Takes the state of a variable, in a whole record of its spec.
  virtual void import_state(const Variable& variable, const VariableRecord& record) = 0;
  // The states that attach() was called with and that still exist.
  virtual std::vector<std::shared_ptr<AttachedState>> attached_states() const { return {}; }
  // In this order; a variable may come several times, also in apply().
  virtual void write(std::span<const VariableWrite> writes) = 0;
  // The sums of gradients over the replicas, which all make this call; undefined if none has one.
  // The default returns the gradients, as there is one replica.
  virtual std::vector<at::Tensor> sum_over_replicas(std::span<const Update> gradients);
  // Before a backward pass whose gradients all go into apply() with this key, in this order: who
  // takes them while it runs. nullptr: nobody does. Some of the variables may be of other homes.
  virtual std::unique_ptr<GradientSink> gradient_sink(const SlotKey& /*key*/,
                                                      std::span<const Variable> /*variables*/) {
    return nullptr;
  }
  // The tensors of this process that an update of the variable may change, in any replica.
  virtual std::vector<at::Tensor> memory_of(const Variable& variable) const {
    return {variable.tensor()};
  }
  // One step of the rule for each variable, with SlotKey::hyper_of() of it. No gradient shares
  // memory_of() one of the variables. A gradient may be undefined if the home reduces over
  // replicas: this replica has none, but others may. Then the hyperparameters are those of the
  // first replica.
  virtual void apply(const SlotKey& key, std::span<const Update> updates,
                     std::span<const double> hyper) = 0;
  // The recorder of the trace on this thread, if its program will run in the process that has these
  // variables; otherwise nullptr, and the trace records effect operators.
  virtual UpdateRecorder* recorder() { return nullptr; }
  // Called by what has state that belongs to these variables, when it is made. If another worker
  // has handed over such a state, or a checkpoint has one for it, it is loaded now; then throws
  // failed_precondition if the other workers have none of this key.
  void attach(const std::shared_ptr<AttachedState>& state) {
    add_attached(state);
    creation_watches_.announce(*state);
  }
  // Who makes a variable of this home announces it.
  CreationWatches& creation_watches() { return creation_watches_; }
  // Whether the values are newer than saved ones, because other workers have handed them over to
  // this program, which has begun again. Then what would restore saved ones leaves them.
  virtual bool keeps_newer_values() const { return false; }

 protected:
  virtual void add_attached(const std::shared_ptr<AttachedState>& /*state*/) {}

 private:
  CreationWatches creation_watches_;
};

// These group the variables by home. All arguments are checked before anything is changed or sent:
// invalid_argument and unimplemented as check_update() and Variable::assign() say. Inside a trace
// they only record.

// In a replica context of several replicas, throws unimplemented for a variable whose home does not
// reduce over replicas. `call` is for the message.
COHORT_API void check_can_update(std::span<const Variable> variables, std::string_view call);
// Outside a trace. Unlike Variable::read(), the values have no gradient.
COHORT_API std::vector<at::Tensor> read_values(std::span<const Variable> variables);
// All are assignments, or all changes of rows.
COHORT_API void write_values(std::span<const VariableWrite> writes);
// `hyper`: 0-dim float64 tensors in the rule's order, with those of the key's groups after them,
// read once for all variables; in a trace, read at every call of the traced step.
COHORT_API void apply_updates(const SlotKey& key, std::span<const Update> updates,
                              std::span<const at::Tensor> hyper);

// The sums of gradients over the replicas of a run, or of a traced step of several replicas, which
// all make this call; the gradients themselves with one replica. Throws as check_can_update() does.
COHORT_API std::vector<at::Tensor> sum_over_replicas(std::span<const Update> gradients,
                                                     std::string_view call);

// "'w', 'b' and 3 more"
COHORT_API std::string names_of(std::span<const Variable> variables);

}  // namespace cohort
