// SPDX-License-Identifier: Apache-2.0
// A variable of a synchronous strategy: with one component for each replica of this process (tf's
// MirroredVariable and SyncOnReadVariable), or with one value that all replicas share (tf's
// AggregatingVariable, and the plain variables of one replica).
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cohort/core/effect_handler.h"
#include "cohort/core/mutex.h"
#include "cohort/function/local_tensors.h"
#include "cohort/replicas/component_impl.h"
#include "cohort/synchronous/central_values.h"
#include "cohort/variable/variable.h"
#include "cohort/variable/variable_home.h"
#include "cohort/variable/variable_state.h"

namespace cohort {
class ReplicaContext;
}

namespace cohort::internal {

class ComponentVariable;
class MirroredHome;

// LibTorch's count of the writes into a tensor; 0 for one of an inference mode, which has none.
std::uint32_t version_of(const at::Tensor& tensor);

// Each replica uses its own component from its own thread. Calls for several components are
// thread-safe with each other; they must not run while a step computes with the variable. Many
// methods because each kind of write is checked before any variable of a call is changed.
class MirroredVariable final : public VariableImpl,
                               public std::enable_shared_from_this<MirroredVariable> {
 public:
  struct Traits {
    bool is_trainable = true;
    VariableSynchronization synchronization = VariableSynchronization::on_write;
    VariableAggregation aggregation = VariableAggregation::none;
    // There is one value. Then no synchronization is needed, and any is accepted.
    bool is_plain = false;
  };
  // One tensor for each replica, on its device, of one dtype and shape. The tensors of a plain
  // variable share their memory, so that each replica has an autograd leaf of its own for the one
  // value. Throws invalid_argument for tensors that cannot be a variable's, and for traits that do
  // not fit each other.
  MirroredVariable(std::string name, std::vector<at::Tensor> tensors, Traits traits,
                   std::shared_ptr<MirroredHome> home);
  ~MirroredVariable() override;

  const std::string& name() const override { return name_; }
  const TensorSpec& spec() const override { return spec_; }
  bool is_trainable() const override { return traits_.is_trainable; }
  VariableReplication replication() const override {
    return {traits_.synchronization, traits_.aggregation};
  }
  // The component of the replica that runs here; the first one in cross-replica context. Inside of
  // a SyncOnReadScope, all replicas' values together if it is synchronized on read. Throws
  // failed_precondition where another strategy is current.
  const at::Tensor& tensor() const override;
  std::vector<at::Tensor> other_tensors() const override;
  // For a variable that is synchronized on read: the value of all replicas, from theirs in the
  // order of the replicas.
  at::Tensor reduced(const std::vector<at::Tensor>& values) const;
  std::vector<at::Tensor> values_to_reduce() const;
  // Throws in cross-replica context if the value is only known by a reduction (on_read).
  bool is_tensor_current() const override;
  void check_tensor_is_current(std::string_view call) const override;
  at::Tensor copy() const override;
  std::shared_ptr<VariableHome> home() const override;
  MirroredHome& mirrored_home() const { return *home_; }  // the same
  void check_use(std::string_view method) const;          // VariableHome's

  const Traits& traits() const { return traits_; }
  bool is_plain() const { return traits_.is_plain; }
  // Not if there is one replica in sync: its value is that of all.
  bool is_on_read() const {
    return traits_.synchronization == VariableSynchronization::on_read &&
           (size() > 1 || has_workers());
  }
  // The number of values: of a plain variable 1, else that of the replicas.
  std::size_t size() const { return states_.size(); }
  // Which value replica i uses, and the tensor that it computes with.
  std::size_t value_of(std::size_t i) const { return is_plain() ? 0 : i; }
  const at::Tensor& component(std::size_t i) const { return tensors_[i]; }
  const std::vector<at::Tensor>& tensors() const { return tensors_; }
  // Value i as a variable of its own, always with the same impl; the variable itself if it has only
  // one value.
  Variable component_variable(std::size_t i);

  // Whether the replicas must have equal values: until one of them is written alone, and again
  // after an assignment of the whole variable.
  bool must_agree() const { return size() > 1 && !is_on_read() && !may_differ_; }
  void allow_difference(bool is_allowed = true) { may_differ_ = is_allowed; }
  bool may_differ() const { return may_differ_; }
  // Both bit by bit.
  bool agrees() const;
  bool are_copies_of(const at::Tensor& value) const;
  // If the first component was written in place outside of a run, through the tensor that tensor()
  // gave there, the others get its value.
  void adopt_outside_write();
  // Takes what was written until now as known, so that it is no outside write.
  void note_writes();

  // Throws invalid_argument if write_all() must not be called, as for assign_add() of an on_read
  // variable that is summed. write_all() itself does not check this.
  void check_write_all(Effect::Kind kind) const;
  // Throws unimplemented for changes of rows that cannot be combined over replicas, in any context.
  void check_scatter(Effect::Kind kind) const;
  // In cross-replica context: every value, or its share of an assigned one.
  void write_all(const VariableWrite& write);
  void write_value(std::size_t i, const VariableWrite& write);

  const VariableState& state(std::size_t i) const { return states_[i]; }
  // For updates of shares of the elements (workers/sharded_updates.h), which keep slots
  // for the first value only, and write new values into all components.
  VariableState& state_of_shares() { return states_[0]; }
  void drop_other_slots(const SlotKey& key);
  void note_new_values() const;
  // Takes the values as those of all workers.
  void know_values() { known_versions_ = versions(); }
  // The next has_other_values() is true.
  void doubt_values() { known_versions_ = kNoVersions; }
  // Whether something else than an update has written a component since know_values(), as far as
  // LibTorch counts writes.
  bool has_other_values() const { return !is_on_read() && is_written_by_others(); }
  // The same, also where the replicas' values may differ.
  bool is_written_by_others() const { return versions() != known_versions_; }
  // Where the value is kept elsewhere (CentralCopies): makes all copies equal to it.
  void take_central(const CentralValue& central);
  // The version of the last take_central(); 0 if the copies may have another value by now: LibTorch
  // counts no writes into an inference tensor, and values on read differ as they should.
  std::uint64_t central_version() const {
    const bool is_counted = !is_on_read() && !component(0).is_inference();
    return is_counted && !has_other_values() ? central_version_.load() : 0;
  }
  void forget_central() { central_version_ = 0; }
  // The value of the last take_central(), on the CPU. Undefined for a value above 64 MiB, and
  // mostly for a trainable variable (CentralCopies::compares_all()): then only LibTorch's counts
  // tell of writes.
  at::Tensor known_central() const { return known_central_; }
  void forget_central_value() { known_central_ = at::Tensor(); }
  Variable handle() { return Variable(shared_from_this()); }
  // As VariableHome::export_state() gives it with the value of each replica.
  VariableRecord record(const StateWalk& walk) const;
  // The same of one replica's value.
  VariableRecord::Value value_record(std::size_t i, const StateWalk& walk) const;
  // Makes the values and their slots those of a record, while no run is open. Its tensors may be
  // those of the variable. `may_keep`: nobody else uses the record's slots, so that they may become
  // those of the variable.
  void take(const VariableRecord& record, bool may_keep);
  // The same for value i; see VariableState::take_slots().
  void take(std::size_t i, const VariableRecord::Value& value, bool may_keep);

  // As VariableState's, for value i; only the value's own replica, or one thread for all of them,
  // calls it. The result of apply() is assumed to be the same on all workers: where each has made
  // an update of its own, doubt_values() must follow.
  VariableState::Reserve reserve(std::size_t i, const SlotKey& key, const at::Tensor& gradient,
                                 std::span<const double> hyper) const;
  void apply(std::size_t i, const SlotKey& key, VariableState::Reserve reserve,
             std::span<const double> hyper);
  // The same for all values, which are equal: updates the first one and copies it to the others.
  void apply_to_all(const SlotKey& key, VariableState::Reserve reserve, const at::Tensor& gradient,
                    std::span<const double> hyper);

 private:
  bool has_workers() const;
  static std::shared_ptr<const void> accumulator_of(const at::Tensor& tensor);
  const at::Tensor& synchronized(const ReplicaContext& replica) const;
  void tell_autograd(std::size_t i) const;
  std::uint64_t versions() const;
  class KnownWrite;

  const std::string name_;
  const TensorSpec spec_;
  const Traits traits_;
  const std::shared_ptr<MirroredHome> home_;
  mutable Mutex mutex_;                                    // held by calls for several components
  const std::vector<at::Tensor> tensors_;                  // one for each replica
  std::vector<std::shared_ptr<const void>> accumulators_;  // autograd's, of the tensors
  std::vector<VariableState> states_;            // one for each value; never changes its size
  std::deque<function::LocalTensorName> names_;  // name it in errors of a trace
  static constexpr std::uint64_t kNoVersions = std::uint64_t{1} << 63;  // more than any sum
  // The sum of the components' versions if only updates write them.
  std::atomic<std::uint64_t> known_versions_ = kNoVersions;
  std::atomic<bool> may_differ_ = false;
  // Whether code outside of a run has the first component, and its version when it was last known.
  mutable std::atomic<bool> is_handed_out_ = false;
  mutable std::atomic<std::uint64_t> handed_out_version_ = 0;
  at::Tensor known_central_;
  std::atomic<std::uint64_t> central_version_ = 0;
  std::vector<std::unique_ptr<ComponentVariable>> components_;
};

// One value of a variable that has several. A call on it concerns that value alone, in every
// context. It lives as long as its container, which its handles keep alive.
class ComponentVariable final : public ComponentImpl {
 public:
  ComponentVariable(MirroredVariable& container, std::size_t index);

  const std::string& name() const override { return name_; }
  const TensorSpec& spec() const override { return container_.spec(); }
  bool is_trainable() const override { return container_.is_trainable(); }
  VariableReplication replication() const override { return container_.replication(); }
  const at::Tensor& tensor() const override;
  bool is_tensor_current() const override { return true; }
  void check_tensor_is_current(std::string_view) const override {}
  at::Tensor copy() const override;
  std::shared_ptr<VariableHome> home() const override { return container_.home(); }

  MirroredVariable& container() const { return container_; }
  Variable whole() const override { return Variable(container_.shared_from_this()); }
  std::size_t index() const override { return index_; }
  std::size_t count() const override { return container_.size(); }

 private:
  MirroredVariable& container_;
  const std::size_t index_;
  const std::string name_;
};

// A variable of a synchronous strategy; of a component, its container and its index.
struct MirroredTarget {
  MirroredVariable& variable;
  std::optional<std::size_t> component = {};
};
MirroredTarget target_of(const Variable& variable);
// The components of a variable of a synchronous strategy, in the order of the replicas; the
// variable itself if it is a component or has one value.
std::vector<Variable> component_variables(const Variable& variable);

}  // namespace cohort::internal
