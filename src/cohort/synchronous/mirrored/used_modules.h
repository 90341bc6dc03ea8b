// SPDX-License-Identifier: Apache-2.0
// The replicated modules of a home, around the runs that use them: their modes, and whether they
// are still made of the same tensors.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "cohort/core/amortized_sweep.h"
#include "cohort/core/mutex.h"
#include "cohort/strategy/replicated.h"

namespace cohort::internal {

// Thread-safe.
class UsedModules {
 public:
  // `shares_parameters`: the replicas have one value of each parameter.
  UsedModules(std::size_t replicas, bool shares_parameters)
      : replicas_(replicas), shares_parameters_(shares_parameters) {}

  // Adds a module, whose modes a run that uses it restores at its end.
  void keep(const std::shared_ptr<ModuleUse>& module);
  // The modes of all modules, those of each replica's copies one after the other.
  std::vector<std::vector<bool>> modes();
  // If scopes overlap, the last to be destroyed restores the modes that the modules had before the
  // first one used them: others still compute with those that their steps have set.
  class ModesScope {
   public:
    // nullptr: does nothing, as in a replica, which is in the scope of its run.
    explicit ModesScope(UsedModules* modules);
    ~ModesScope();
    ModesScope(const ModesScope&) = delete;
    ModesScope& operator=(const ModesScope&) = delete;
    // Restores them now.
    void restore() const;

   private:
    UsedModules* const modules_;
  };
  // Called before each use.
  void note_use(const std::shared_ptr<ModuleUse>& module);
  // At the end of a run without an error, while its ModesScope is open: check_same_tensors() of the
  // modules that it has used, after the first, second, fourth, … run of each; and after each run
  // check_memory_of_replicas(). If runs overlap, the last one does this for all.
  void check_used();

 private:
  struct SavedModes {
    std::shared_ptr<ModuleUse> module;
    std::vector<bool> before;
  };
  void keep_modes(const std::shared_ptr<ModuleUse>& module);
  void restore_modes() const COHORT_REQUIRES(mutex_);
  void check_memory() COHORT_REQUIRES(mutex_);

  const std::size_t replicas_;
  const bool shares_parameters_;
  std::atomic<bool> has_any_ = false;
  Mutex mutex_;
  std::vector<std::weak_ptr<ModuleUse>> modules_ COHORT_GUARDED_BY(mutex_);
  AmortizedSweep sweep_ COHORT_GUARDED_BY(mutex_);
  // The modes of the modules that were used while a ModesScope was open.
  std::vector<SavedModes> saved_ COHORT_GUARDED_BY(mutex_);
  int open_scopes_ COHORT_GUARDED_BY(mutex_) = 0;
  std::atomic<std::uint64_t> scope_ = 0;  // counts when the first of them was opened
};

}  // namespace cohort::internal
