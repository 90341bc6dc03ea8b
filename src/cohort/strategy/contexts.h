// SPDX-License-Identifier: Apache-2.0
// Enters and checks the contexts of strategies.
#pragma once

#include <functional>
#include <string_view>

#include "cohort/core/export.h"
#include "cohort/strategy/strategy.h"

namespace cohort::internal {

class ReplicaThreads;  // replicas/replica_threads.h

// Checks that run(), function() or a cross-replica method of `strategy` may be called here: inside
// its own scope or in the default mode.
void check_can_run(const Strategy& strategy, std::string_view call);
// Runs body in a replica context of `strategy` on this thread.
COHORT_API void in_replica_context(Strategy& strategy, int replica_id,
                                   const std::function<void(ReplicaContext&)>& body,
                                   int local_replica_id = 0);
// The same for `count` local replicas at the same time, replica 0 on this thread; `first` is the
// first one's id in the sync group.
COHORT_API void in_replica_contexts(Strategy& strategy, ReplicaThreads& threads, int first,
                                    int count, const std::function<void(ReplicaContext&)>& body);
// Runs body in cross-replica context of `strategy`, where its variables are their component number
// `component`.
COHORT_API void in_update(Strategy& strategy, int component, const std::function<void()>& body);
// The component that the innermost in_update() on this thread changes; -1 outside of all.
COHORT_API int updated_component();
// Whether this thread is in the loss of a part (gradients_in_parts()).
bool is_in_gradient_part();
// An object that a strategy has made, for messages: {"variable", "v"}.
struct MadeBy {
  std::string_view kind = {};
  std::string_view name = {};
};
// Checks, when what `strategy` has made is used, that no other strategy is current. The pointer is
// only compared, so the strategy may have been destroyed.
COHORT_API void check_not_mixing(const Strategy* strategy, std::string_view name,
                                 std::string_view method, const MadeBy& used = {});
// The same when a variable is created; the default strategy's scope must not be open either.
COHORT_API void check_can_create(const Strategy* strategy, std::string_view name,
                                 std::string_view method);
}  // namespace cohort::internal
