// SPDX-License-Identifier: Apache-2.0
// What every strategy has: a scope, replicas, and the context in which code runs
// (tf.distribute.Strategy).
//
// Each thread has a stack of modes. An empty one is the default strategy's replica context; scope()
// pushes cross-replica context, run() replica context, merge_call() cross-replica context again.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "cohort/core/export.h"
#include "cohort/core/nest.h"

namespace cohort {

class Strategy;

// Where replica code runs. Used only from the thread of its replica, while it runs.
class COHORT_API ReplicaContext {
 public:
  ReplicaContext(Strategy& strategy, int replica_id)
      : strategy_(strategy), replica_id_(replica_id) {}
  ReplicaContext(const ReplicaContext&) = delete;
  ReplicaContext& operator=(const ReplicaContext&) = delete;

  Strategy& strategy() const { return strategy_; }
  int replica_id_in_sync_group() const { return replica_id_; }
  int num_replicas_in_sync() const;
  // Runs merge_fn once in cross-replica context. failed_precondition when this context is not the
  // current one.
  Nest merge_call(
      const std::function<Nest(Strategy& strategy, const std::vector<Nest>& arguments)>& merge_fn,
      const std::vector<Nest>& arguments = {});

 private:
  Strategy& strategy_;
  int replica_id_;
};

// Leaves its strategy's scope when it goes. Used only from the thread that entered it.
class COHORT_API Scope {
 public:
  explicit Scope(Strategy& strategy);
  ~Scope();
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;

 private:
  Strategy& strategy_;
  bool has_pushed_;
};

// Base of all strategies. Never copied. Thread-safe unless said otherwise.
class COHORT_API Strategy {
 public:
  Strategy() = default;
  virtual ~Strategy() = default;
  Strategy(const Strategy&) = delete;
  Strategy& operator=(const Strategy&) = delete;

  virtual std::string_view name() const = 0;
  virtual int num_replicas_in_sync() const = 0;
  // Cross-replica context of this strategy, until the object goes. failed_precondition inside
  // another strategy's scope
  // ("mixing strategies") and in a replica context ("use merge_call").
  [[nodiscard]] Scope scope() { return Scope(*this); }

  // Runs fn once a replica, each in its own replica context; one replica's result comes as it is.
  template <class F, class... A>
  auto run(F&& fn, A&&... arguments) {
    using Result = std::invoke_result_t<F&, A&...>;
    if constexpr (std::is_void_v<Result>) {
      run_replicas([&](ReplicaContext&) { fn(arguments...); });
    } else {
      std::optional<Result> result;
      run_replicas([&](ReplicaContext&) { result.emplace(fn(arguments...)); });
      return std::move(*result);
    }
  }

 protected:
  // Runs body for the strategy's replicas; run() has no more than this from its strategy.
  virtual void run_replicas(const std::function<void(ReplicaContext&)>& body) = 0;
  friend class ReplicaContext;
};

// The current mode of this thread (tf.distribute.get_strategy and its siblings).
COHORT_API Strategy& get_strategy();
COHORT_API bool has_strategy();
COHORT_API bool in_cross_replica_context();
// nullptr in cross-replica context.
COHORT_API ReplicaContext* get_replica_context();
// The strategy of every thread with an empty stack.
COHORT_API Strategy& default_strategy();

namespace internal {
// Runs body in a replica context of `strategy` on this thread.
COHORT_API void in_replica_context(Strategy& strategy, int replica_id,
                                   const std::function<void(ReplicaContext&)>& body);
// Checks that a cross-replica method of `strategy` may run here: its own scope, or the default
// mode.
COHORT_API void check_cross_replica_or_default(const Strategy& strategy, std::string_view method);
}  // namespace internal

}  // namespace cohort
