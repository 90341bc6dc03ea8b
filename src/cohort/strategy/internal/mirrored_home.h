// SPDX-License-Identifier: Apache-2.0
// The variables and modules of a strategy whose replicas are in this process.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cohort/core/detail/mutex.h"
#include "cohort/strategy/internal/mirrored_variable.h"
#include "cohort/strategy/replicated.h"
#include "cohort/variable/detail/variable_home.h"

namespace cohort {
class ReplicaContext;
class Strategy;
}  // namespace cohort

namespace cohort::internal {

// Whether each replica has a component of a variable, or all share one value.
enum class VariableKind : std::uint8_t { mirrored, plain };

// What a call does depends on where its thread is. In a replica, it concerns the replica's
// component, and an assignment may be combined with those of the other replicas. In an update of
// one component, it concerns that one; elsewhere all. A call for a component that is given as a
// variable of its own always concerns that one. Thread-safe.
class MirroredHome final : public VariableHome,
                           public ModuleHome,
                           public std::enable_shared_from_this<MirroredHome> {
 public:
  // `owner` is compared, and named in messages; the variables may outlive it.
  MirroredHome(const Strategy* owner, std::string name, std::size_t replicas, VariableKind kind)
      : owner_(owner), name_(std::move(name)), replicas_(replicas), kind_(kind) {}

  VariableKind kind() const { return kind_; }
  // The value is copied. Throws already_exists if a variable of this name exists.
  Variable create(const std::string& name, const at::Tensor& initial_value,
                  MirroredVariable::Traits traits);
  // All or none of the variables "<module>/<name of the tensor>". `copies`: the tensors of each
  // replica's module. Throws invalid_argument if they differ in names, dtypes or shapes. The
  // components get the values of the first copy. If all replicas share one value, the parameters of
  // all modules get one memory; but each keeps its own buffers, into which its layers write without
  // a meeting.
  std::vector<Variable> create_module(std::string_view module,
                                      const std::vector<std::vector<NamedTensor>>& copies);

  // Whether this thread is in a replica of the strategy, or in an update of one component.
  bool is_in_replica() const { return place_here().kind != Place::Kind::all; }
  std::size_t component_here() const override { return place_here().component; }
  // The replica that runs on this thread; nullptr if none does.
  const ReplicaContext* replica_here() const { return place_here().replica; }

  // Adds a module, whose modes a run restores at its end.
  void keep_modes(ModuleModes modes);
  // Restores the modes of all modules when it is destroyed. A run inside a run restores nothing.
  class ModesScope {
   public:
    explicit ModesScope(MirroredHome& home);
    ~ModesScope();
    ModesScope(const ModesScope&) = delete;
    ModesScope& operator=(const ModesScope&) = delete;

   private:
    MirroredHome& home_;
    std::vector<std::vector<bool>> before_;
  };

  void check_use(std::string_view method) const override;
  bool reduces_over_replicas() const override { return !is_of_one_value(); }
  std::vector<at::Tensor> read(std::span<const Variable> variables) const override;
  void assign(std::span<const Assignment> assignments) override;
  void scatter(std::span<const RowUpdate> updates) override;
  void apply(const SlotKey& key, std::span<const Update> updates,
             std::span<const double> hyper) override;

  void check_module_use() const override;
  void check_outside_step(std::string_view call) const override;

 private:
  // Where this thread is, as far as it concerns these variables.
  struct Place {
    enum class Kind : std::uint8_t { all, replica, update };
    Kind kind = Kind::all;
    std::size_t component = 0;
    const ReplicaContext* replica = nullptr;
  };
  Place place_here() const;
  // Whether the variables are plain ones of one replica, as tf's: other strategies may use them.
  bool is_of_one_value() const { return kind_ == VariableKind::plain && replicas_ == 1; }
  // The values that a write concerns: one, all, or all with what the replicas bring together.
  struct Reach {
    enum class Kind : std::uint8_t { one, all, merged };
    Kind kind = Kind::all;
    std::size_t value = 0;
  };
  // Throws invalid_argument if replicas cannot write this variable. `call` is for the message.
  Reach reach_of(const Variable& variable, const Place& place, std::string_view call) const;
  void check_name(const std::string& name) COHORT_REQUIRES(mutex_);
  // These combine the values of all replicas, which make the same calls.
  static void assign_merged(const ReplicaContext& replica, std::vector<Assignment> assignments);
  static void scatter_merged(const ReplicaContext& replica, std::vector<RowUpdate> updates);
  struct Reduced;
  static Reduced reduce(const ReplicaContext& replica, const SlotKey& key,
                        std::span<const Update> updates, std::span<const double> hyper);

  const Strategy* const owner_;
  const std::string name_;
  const std::size_t replicas_;
  const VariableKind kind_;
  std::atomic<bool> has_modules_ = false;
  Mutex mutex_;
  std::map<std::string, std::weak_ptr<VariableImpl>> by_name_ COHORT_GUARDED_BY(mutex_);
  std::vector<ModuleModes> modes_ COHORT_GUARDED_BY(mutex_);
};

}  // namespace cohort::internal
