// SPDX-License-Identifier: Apache-2.0
// The state that a ParameterServerStrategy shares with its replicated modules and its coordinator.
// The last of them destroys it.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cohort/core/mutex.h"
#include "cohort/parameter_server/remote_home.h"
#include "cohort/parameter_server_strategy/cluster_connection.h"
#include "cohort/parameter_server_strategy/unused_variables.h"
#include "cohort/strategy/parameter_server_strategy.h"
#include "cohort/strategy/replicated.h"
#include "cohort/variable/variable_table.h"

namespace cohort {

class EagerStep;  // variable/eager_step.h

// The next free ids. Successive coordinators of a strategy use the same servers, which identify
// functions, iterators and applied closures by number. So a coordinator continues the numbering of
// its predecessor.
struct CoordinatorNumbers {
  std::uint64_t next_closure = 1;  // 0 is no closure
  std::uint32_t next_function = 0;
  std::uint64_t next_iterator = 1;
  std::vector<std::uint64_t> left_iterators;  // unused, but still on the workers
};

// Ensures that a strategy has one coordinator at a time. Thread-safe.
struct CoordinatorLease {
  Mutex mutex;
  Condition changed;
  std::weak_ptr<void> coordinator COHORT_GUARDED_BY(mutex);
  // Still true while the last coordinator shuts down.
  bool is_taken COHORT_GUARDED_BY(mutex) = false;
  CoordinatorNumbers numbers COHORT_GUARDED_BY(mutex);
};

}  // namespace cohort

namespace cohort::detail {

// Thread-safe. Many methods because it implements the homes of variables and of modules, which
// share the stand-ins and their lock.
class COHORT_API ParameterServerHome final
    : public internal::ModuleHome,
      public RemoteHome,
      public std::enable_shared_from_this<ParameterServerHome> {
 public:
  ParameterServerHome(const ParameterServerStrategy* owner, const ClusterResolver& resolver,
                      ParameterServerOptions options);
  const ParameterServerOptions& options() const { return options_; }
  ClusterConnection& connection() const { return *connection_; }
  const ClusterResolver& resolver() const { return *resolver_; }
  // The address at which the coordinator answers `cohort status`: the chief's address in the
  // cluster spec if the resolver says that this task is the chief, else empty.
  const std::string& own_address() const { return own_address_; }
  CoordinatorLease& coordinator_lease() { return lease_; }

  // The variables of the strategy that something uses, in the order in which they were made. Give
  // handle_of() one of them to what keeps it.
  const VariableTable& variables() const { return variables_; }
  Variable handle_of(const Variable& variable) { return unused_.handle_of(variable); }
  // Frees the names and the memory of variables that nothing uses any more now; otherwise that
  // happens soon after their last handle is gone.
  void drop_unused();
  // Set by a coordinator: forgets the functions that nobody can schedule any more, which otherwise
  // keep their variables. drop_unused() calls it.
  void set_forget_functions(std::function<void()> forget);
  // Creates all or none of the variables, on server `ps`, or round robin. If there is no
  // initializer, the content of the tensors is sent. Returns handles.
  std::vector<Variable> create(const std::vector<internal::NamedTensor>& wanted,
                               std::optional<std::uint32_t> ps = {},
                               const Initializer* initializer = nullptr);
  // The same for one variable, whose initial value the server computes.
  Variable create(std::string name, const TensorSpec& spec, const Initializer& initializer,
                  bool is_trainable, std::optional<std::uint32_t> ps = {});
  // One that no variable and no snapshot has.
  std::uint64_t new_number();
  // The same on all servers, also on those that have none of these variables, so that each knows
  // the snapshot. After it, drop_snapshot().
  void take_snapshot(std::uint64_t number, std::span<const Variable> variables);
  // Does not wait for the servers.
  void drop_snapshot(std::uint64_t number);
  // A table with a slice on each server.
  Variable create_table(std::string name, const EmbeddingTableOptions& options);
  // The servers of a variable's shards. Throws failed_precondition if it belongs to another
  // strategy.
  std::vector<std::uint32_t> servers_of(const Variable& variable) const;

  // Throws invalid_argument, naming the call, if `value` is tensor() of a variable or was computed
  // from it with a graph: outside of a step it is a stand-in without the current value. `detail`
  // identifies the value in the message: " (argument 0 of 'step')".
  void check_is_no_stand_in(std::string_view call, const at::Tensor& value,
                            std::string_view detail = "") const;

  void check_use(std::string_view method, std::string_view variable) const override;
  bool is_of_one_strategy() const override { return true; }
  void check_module_use(std::string_view module) const override;
  void note_module_use(const std::shared_ptr<internal::ModuleUse>& module) override;
  void write(std::span<const VariableWrite> writes) override;
  void check_outside_step(std::string_view call) const override;

  // A thread holds this lock while it runs user code that uses the stand-ins, or changes them. The
  // lock is recursive, and is taken before every other lock.
  std::unique_lock<std::recursive_mutex> lock_stand_ins() const {
    return std::unique_lock(stand_ins_);
  }
  // Runs `body` with the current values in the stand-ins, then assigns the values that the step
  // wrote into stand-ins in place. Throws invalid_argument for a trainable variable and for a value
  // with a graph. `where` is for the message. Afterwards the modes of the modules are restored, and
  // no stand-in keeps a graph. The caller holds lock_stand_ins().
  void run_with_stand_ins(EagerStep& step, std::string_view where,
                          const std::function<void()>& body);
  // Adds a replicated module, whose modes are train() or eval(). Takes lock_stand_ins().
  void keep_modes(internal::ModuleModes modes);
  // Another strategy may get its address.
  void forget_owner() { owner_ = nullptr; }
  // Get and set the modes of all replicated modules. The caller holds lock_stand_ins().
  std::vector<std::vector<bool>> module_modes() const;
  void set_module_modes(const std::vector<std::vector<bool>>& modes) const;
  // Logs, at the first call, that run() outside of a scheduled function runs on the coordinator.
  void warn_of_local_run();

 private:
  // The shards and bytes that have been placed so far.
  struct Placed {
    std::uint64_t shards = 0;
    std::vector<std::uint64_t> bytes;  // on each server
  };
  std::uint32_t next_server(std::uint64_t bytes, Placed& placed) const;
  std::int64_t num_shards(const internal::NamedTensor& wanted) const;
  rpc::InitialValue initial_value(const Initializer& initializer, const Variable& variable,
                                  const rpc::Slice& slice) const;
  void add_shards(const std::shared_ptr<RemoteVariable>& whole, std::span<const rpc::Slice> slices);
  Variable make(const internal::NamedTensor& wanted, std::optional<std::uint32_t> ps,
                Placed& placed) COHORT_REQUIRES(creation_);
  void create_table_on_servers(const Variable& table, const EmbeddingTableOptions& options) const;
  void send_specs(const std::map<rpc::MemberId, std::vector<rpc::VariableSpec>>& by_server) const;
  void publish(const std::vector<Variable>& fresh, const Initializer* initializer);
  // Some servers may have them, although another one has refused.
  void withdraw(const std::vector<Variable>& fresh);
  bool try_alone(const std::function<void()>& body) const;
  void create_on_servers(const std::vector<Variable>& fresh, const Initializer* initializer) const;
  void upload_by_shards(const Variable& variable, const Initializer& initializer) const;
  // `resolver` gives the same answers for ever.
  ParameterServerHome(const ParameterServerStrategy* owner,
                      std::shared_ptr<const ClusterResolver> resolver,
                      ParameterServerOptions options);
  ParameterServerHome(const ParameterServerStrategy* owner,
                      std::shared_ptr<const ClusterResolver> resolver,
                      ParameterServerOptions options,
                      std::unique_ptr<ClusterConnection> connection);

  void upload(const std::vector<Variable>& fresh) const;
  void load_stand_ins(EagerStep& step) const;
  void write_back_stand_ins(std::string_view where) const;
  void drop_graphs() const;

  std::atomic<const ParameterServerStrategy*> owner_;  // nullptr after its end
  const ParameterServerOptions options_;
  const std::unique_ptr<ClusterConnection> connection_;
  const std::shared_ptr<const ClusterResolver> resolver_;
  const std::string own_address_;
  VariableTable variables_;
  CoordinatorLease lease_;
  std::atomic<bool> has_warned_{false};
  mutable std::recursive_mutex stand_ins_;
  std::vector<internal::ModuleModes> modes_;  // of replicated modules; guarded by stand_ins_

  // Held until the servers have accepted new variables, since only then the next one gets the turn.
  Mutex creation_;
  Placed placed_ COHORT_GUARDED_BY(creation_);
  std::uint64_t last_id_ COHORT_GUARDED_BY(creation_) = 0;
  Mutex forget_mutex_;
  std::function<void()> forget_functions_ COHORT_GUARDED_BY(forget_mutex_);
  UnusedVariables unused_;  // last, because its thread uses the others
};

}  // namespace cohort::detail

namespace cohort {

// The effect of train() and eval() inside a step ends with the step: restores the modes of all
// replicated modules when it is destroyed. The caller holds lock_stand_ins().
class ModesScope {
 public:
  explicit ModesScope(const detail::ParameterServerHome& home)
      : home_(home), modes_(home.module_modes()) {}
  ~ModesScope() { restore(); }
  ModesScope(const ModesScope&) = delete;
  ModesScope& operator=(const ModesScope&) = delete;
  void restore() const { home_.set_module_modes(modes_); }

 private:
  const detail::ParameterServerHome& home_;
  const std::vector<std::vector<bool>> modes_;
};

}  // namespace cohort
