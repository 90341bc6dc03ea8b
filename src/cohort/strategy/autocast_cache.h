// SPDX-License-Identifier: Apache-2.0
// The weights that autocast has converted on a thread.
#pragma once

#include <ATen/autocast_mode.h>

#include "cohort/function/autocast.h"
#include "cohort/function/trace.h"

namespace cohort::internal {

// Forgets them at both ends of a replica's run. Autocast itself does so when the thread's outermost
// guard ends. If that guard is around several runs, it would compute with weights of the first run
// on the caller's thread; and on the threads of other replicas no guard ends.
class AutocastCacheScope {
 public:
  AutocastCacheScope() { forget(); }
  ~AutocastCacheScope() { forget(); }
  AutocastCacheScope(const AutocastCacheScope&) = delete;
  AutocastCacheScope& operator=(const AutocastCacheScope&) = delete;

 private:
  static void forget() {
    // A trace records each conversion, and ends with its guard.
    const bool is_enabled = function::is_autocast_enabled() || function::is_gpu_autocast_enabled();
    if (is_enabled && function::Trace::current() == nullptr) at::autocast::clear_cache();
  }
};

}  // namespace cohort::internal
