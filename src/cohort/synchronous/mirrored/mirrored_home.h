// SPDX-License-Identifier: Apache-2.0
// The variables and modules of a strategy whose replicas are in this process.
#pragma once

#include <c10/core/Device.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cohort/collective/group.h"
#include "cohort/core/amortized_sweep.h"
#include "cohort/core/mutex.h"
#include "cohort/input/per_replica.h"
#include "cohort/strategy/replicated.h"
#include "cohort/synchronous/mirrored/mirrored_variable.h"
#include "cohort/synchronous/mirrored/run_agreement.h"
#include "cohort/synchronous/mirrored/used_modules.h"
#include "cohort/synchronous/undo/optimizer_gradients.h"
#include "cohort/synchronous/undo/step_undo.h"
#include "cohort/synchronous/workers/received_state.h"
#include "cohort/variable/attached_states.h"
#include "cohort/variable/variable_home.h"
#include "cohort/workers/run_gate.h"
#include "cohort/workers/strategy_workers.h"

namespace cohort {
class ReplicaContext;
class Strategy;
}  // namespace cohort

namespace cohort::internal {

class CentralCopies;
class CentralValues;
class ShardedUpdates;
class WorkerGradients;

// Whether each replica has a component of a variable, or all share one value. central: plain ones
// of a CentralStorageStrategy, which are on its parameter device; a home has no such kind.
enum class VariableKind : std::uint8_t { mirrored, plain, central };

// Held while traced steps run, by all of them, and alone while one is traced, which changes values
// for a while. Unlike a std::shared_mutex, it keeps new steps out while a trace waits: steps that
// overlap could let it wait for ever.
class TraceMutex {
 public:
  void lock_shared() {
    { const std::lock_guard gate(gate_); }
    mutex_.lock_shared();
  }
  void unlock_shared() { mutex_.unlock_shared(); }
  void lock() {
    const std::lock_guard gate(gate_);
    mutex_.lock();
  }
  void unlock() { mutex_.unlock(); }

 private:
  std::mutex gate_;
  std::shared_mutex mutex_;
};

// The effect of a call depends on where its thread is. In a replica, it concerns the replica's
// component, and an assignment may be combined with those of the other replicas. In an update of
// one component, it concerns that one; elsewhere all. A call for a component that is given as a
// variable of its own always concerns that one. Thread-safe. Many methods because a strategy, its
// modules and its traced steps each ask other things of one set of variables.
class MirroredHome final : public VariableHome,
                           public ModuleHome,
                           public std::enable_shared_from_this<MirroredHome> {
 public:
  // `owner` is compared, and named in messages; the variables may outlive it.
  MirroredHome(const Strategy* owner, std::string name, std::vector<c10::Device> devices,
               VariableKind kind, CrossDeviceOps cross_device_ops,
               std::shared_ptr<StrategyWorkers> workers);
  ~MirroredHome() override;

  // Another strategy may get its address.
  void forget_owner() { owner_ = nullptr; }
  const std::string& name() const { return name_; }
  VariableKind kind() const { return kind_; }
  std::size_t replicas() const { return replicas_; }  // of this process
  // Whether there are other workers, which have components of the same variables.
  bool has_workers() const override { return workers_->are_several(); }
  StrategyWorkers* workers() const { return workers_.get(); }
  // The id in sync of this process's first replica.
  int first_replica() const {
    return has_workers() ? workers_->own() * static_cast<int>(replicas_) : 0;
  }
  // Whether a write of a replica may concern others, here or in other workers.
  bool has_several_replicas() const { return replicas_ > 1 || has_workers(); }
  std::size_t replicas_in_sync() const {
    return replicas_ * (has_workers() ? static_cast<std::size_t>(workers_->count()) : 1);
  }
  CrossDeviceOps cross_device_ops() const { return cross_device_ops_; }
  // The devices of the replicas.
  const std::vector<c10::Device>& devices() const { return devices_; }
  std::size_t gpus() const { return gpus_; }  // how many of them are GPUs
  // Whether the replicas are on CPUs and on GPUs, which round differently. Then what all of them
  // compute alike is computed by the first one and copied to the others.
  bool is_mixed() const { return gpus_ > 0 && gpus_ < replicas_; }
  // Before the first variable: the values of all of them are kept there, and the replicas have
  // copies of them.
  void keep_values_in(std::shared_ptr<CentralValues> values);
  CentralCopies* central() const { return central_.get(); }  // nullptr: they are kept here
  // The value is copied. Throws already_exists if a variable of this name exists. Central values
  // are kept `beside` those of another variable.
  Variable create(const std::string& name, const at::Tensor& initial_value,
                  MirroredVariable::Traits traits, const std::optional<Variable>& beside = {});
  // All or none of the variables "<module>/<name of the tensor>". `copies`: the tensors of each
  // replica's module. Throws invalid_argument if they differ in names, dtypes or shapes. The
  // components get the values of the first copy, and each its replica's device. If all replicas
  // share one value, the parameters of all modules get one memory; but each keeps its own buffers,
  // into which its layers write without a meeting.
  std::vector<Variable> create_module(std::string_view module,
                                      const std::vector<std::vector<NamedTensor>>& copies);

  // Whether this thread is in a replica of the strategy, or in an update of one component.
  bool is_in_replica() const { return place_here().kind != Place::Kind::all; }
  // Whether this thread is in a replica, which computes with the values of its run.
  bool is_in_run() const { return place_here().kind == Place::Kind::replica; }
  std::size_t component_here() const override { return place_here().component; }
  // The replica that runs on this thread; nullptr if none does.
  const ReplicaContext* replica_here() const { return place_here().replica; }

  // The values that a write to a variable concerns: one, all, or all with what the replicas bring
  // together.
  struct Reach {
    enum class Kind : std::uint8_t { one, all, merged };
    Kind kind = Kind::all;
    std::size_t value = 0;
  };
  // The modules made of these variables, the states of their optimizers, and what runs do to the
  // values beside them.
  UsedModules& modules() { return modules_; }
  UsedModules* modules_around_step() { return is_in_replica() ? nullptr : &modules_; }
  const AttachedStates& attached() const { return attached_; }
  RunAgreement& agreement() const { return agreement_; }
  // All variables that exist.
  std::vector<Variable> variables() const;

  void check_use(std::string_view method, std::string_view variable) const override;
  void check_can_minimize(const std::string& variable) const override;
  bool reduces_over_replicas() const override { return !is_of_one_value(); }
  void write_file(const WriteFile& write) const override;
  std::vector<at::Tensor> read(std::span<const Variable> variables) const override;
  void export_state(std::span<const Variable> variables, const StateWalk& walk,
                    const TakeRecord& take) const override;
  void import_state(const Variable& variable, const VariableRecord& record) override;
  std::vector<std::shared_ptr<AttachedState>> attached_states() const override {
    return attached_.all();
  }
  void write(std::span<const VariableWrite> writes) override;
  std::vector<at::Tensor> sum_over_replicas(std::span<const Update> gradients) override;
  std::unique_ptr<GradientSink> gradient_sink(const SlotKey& key,
                                              std::span<const Variable> variables) override;
  std::vector<at::Tensor> memory_of(const Variable& variable) const override;
  void apply(const SlotKey& key, std::span<const Update> updates,
             std::span<const double> hyper) override;
  UpdateRecorder* recorder() override;

  bool keeps_newer_values() const override;
  // For a handover of values between workers.
  ReceivedState& received() { return received_; }
  RunGate& run_gate() { return run_gate_; }
  // Whether no handover has ended after it had replaced a part of the values.
  bool are_values_whole() const { return are_values_whole_; }
  void set_values_whole(bool are_whole) { are_values_whole_ = are_whole; }

  TraceMutex& trace_mutex() { return trace_mutex_; }
  // Held while a traced step runs that writes variables.
  Mutex& writes() { return writes_; }

  void check_module_use(std::string_view module) const override;
  void check_snapshot(std::span<const Variable> variables) const override;
  // Throws failed_precondition if other workers have other values.
  void check_values_agree(std::string_view call, std::span<const Variable> variables) const;
  void note_module_use(const std::shared_ptr<ModuleUse>& module) override {
    modules_.note_use(module);
  }
  void check_outside_step(std::string_view call) const override;

  // Where this thread is, as far as it concerns these variables.
  struct Place {
    enum class Kind : std::uint8_t { all, replica, update };
    Kind kind = Kind::all;
    std::size_t component = 0;
    const ReplicaContext* replica = nullptr;
    bool is_of_owner = true;  // the strategy of the variables is current
  };
  Place place_here() const;
  // Returns which values a write at a place concerns. Throws invalid_argument if replicas cannot
  // write the variable. `call` is for the message.
  Reach reach_of(const Variable& variable, const Place& place, std::string_view call) const;

  // Sums gradients over all workers, which make this call in a merge of their replicas.
  WorkerGradients& gradients() const { return *gradients_; }
  // Before anything else: each worker keeps a share of the slots.
  void shard_updates();
  // Steps of optimizers over workers go through it; nullptr: each worker makes whole updates.
  ShardedUpdates* sharded_updates() const { return sharded_updates_.get(); }
  // The values of variables synchronized on read, which all workers ask for. `check` throws
  // if this one cannot.
  std::vector<at::Tensor> reduced_over_all(
      const std::vector<const MirroredVariable*>& variables,
      const std::function<void()>& check = [] {}) const;
  // Calls `own` for the tensors of this worker's replicas, one list for each variable, and returns
  // the lists with those of the replicas of all workers.
  std::vector<std::vector<at::Tensor>> of_all_replicas(
      std::string_view call, const std::string& text,
      const std::function<std::vector<std::vector<at::Tensor>>()>& own) const;
  // Undoes the changes of a step that fails; nullptr inside of a step, where that around it undoes
  // them.
  StepUndo* undo_around_step() { return is_in_replica() ? nullptr : &undo_; }
  StepUndo& undo() { return undo_; }
  // Whether a write in a replica is an update, which a step that fails later does not undo: several
  // replicas combine their values in it, or would do so.
  bool is_update(const MirroredVariable& variable, Reach::Kind reach) const;
  AllOptimizerGradients& optimizer_gradients() { return optimizer_gradients_; }
  // To be called on replica 0's thread for each update of an optimizer. Warns once, after a few
  // runs with updates in which each replica has got the same tensors (RunArguments).
  void look_for_plain_rows();

 private:
  void add_attached(const std::shared_ptr<AttachedState>& state) override;
  // Whether the variables are plain ones of one replica, as tf's: other strategies may use them.
  bool is_of_one_value() const { return kind_ == VariableKind::plain && replicas_ == 1; }
  void check_name(const std::string& name) COHORT_REQUIRES(mutex_);
  void check_new(std::span<const std::string> names);
  void keep(const std::shared_ptr<VariableImpl>& variable) COHORT_REQUIRES(mutex_);
  // After a write at a place: whether what the replica has changed until now stays.
  void note_written(const Place& place, bool is_update);
  // The records that other workers have handed over for the variables of a module.
  std::vector<std::optional<VariableRecord>> handed_to(
      std::string_view module, const std::vector<NamedTensor>& tensors) const;
  // Combines what all replicas write, which make the same calls.
  void write_merged(const ReplicaContext& replica, std::vector<VariableWrite> writes);
  std::vector<at::Tensor> read_over_workers(std::span<const Variable> variables) const;
  at::Tensor agreed_value(const std::string& name, const at::Tensor& initial_value,
                          const MirroredVariable::Traits& traits);
  void agree_on_module(std::string_view module,
                       const std::vector<std::vector<NamedTensor>>& copies);
  struct Reduced;
  Reduced reduce(const ReplicaContext& replica, const SlotKey& key, std::span<const Update> updates,
                 std::span<const double> hyper);
  void add_to_central(std::span<const std::shared_ptr<MirroredVariable>> made,
                      const std::optional<Variable>& beside) const;

  std::atomic<const Strategy*> owner_;  // nullptr after its end
  const std::string name_;
  const std::vector<c10::Device> devices_;
  const std::size_t replicas_;
  const std::size_t gpus_;
  const VariableKind kind_;
  const CrossDeviceOps cross_device_ops_;
  const std::shared_ptr<StrategyWorkers> workers_;
  const std::unique_ptr<WorkerGradients> gradients_;
  std::unique_ptr<ShardedUpdates> sharded_updates_;
  std::unique_ptr<CentralCopies> central_;
  UsedModules modules_;
  AttachedStates attached_;
  mutable RunAgreement agreement_{*this};
  StepUndo undo_;
  AllOptimizerGradients optimizer_gradients_;
  RunGate run_gate_;
  ReceivedState received_;
  std::atomic<bool> are_values_whole_ = true;
  TraceMutex trace_mutex_;
  Mutex writes_;
  mutable Mutex mutex_;
  std::map<std::string, std::weak_ptr<VariableImpl>> by_name_ COHORT_GUARDED_BY(mutex_);
  AmortizedSweep sweep_names_ COHORT_GUARDED_BY(mutex_);
  // How many more runs must have updates with plain tensors until a warning. 0: it has come.
  std::atomic<int> plain_runs_left_ = 3;
};

}  // namespace cohort::internal
