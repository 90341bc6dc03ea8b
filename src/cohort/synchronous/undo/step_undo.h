// SPDX-License-Identifier: Apache-2.0
// The changes of a step are undone if the step fails, since a program makes it again: otherwise its
// batch would count twice in the statistics of BatchNorm, and in sums that are synchronized on
// read. The changes of an update stay, and so do the values that buffers had when it completed.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <unordered_set>
#include <vector>

#include "cohort/core/mutex.h"
#include "cohort/replicas/merge_scope.h"

namespace cohort::internal {

class MirroredVariable;
class SavedGenerator;

// Code may write into the tensors of buffers without a call of this library, so their values are
// copied when a step begins, and again when an update has completed. Variables that optimizers
// train are not copied: only assignments in a replica change them besides updates, and these tell
// it before (about_to_write()). Thread-safe.
class StepUndo final : public MergeScope::Written {
 public:
  // The limit for all copies together.
  static constexpr std::int64_t kBytesMax = std::int64_t{64} << 20;

  // `devices`: of the replicas of this process.
  explicit StepUndo(const std::vector<c10::Device>& devices);
  ~StepUndo();

  // From the next step on, the variable is one that steps may write without an update.
  void watch(const std::shared_ptr<MirroredVariable>& variable);

  // The variables that a step may write.
  using Written = std::unordered_set<const MirroredVariable*>;
  struct Options {
    // Only these are written. nullptr: any.
    const Written* written = nullptr;
    // There is one replica, which draws from LibTorch's default generators. The generators of
    // several replicas are undone by RunSeed.
    bool is_only_replica = false;
  };
  // Around one step, on the thread that calls it. If two steps overlap, neither is undone.
  class Scope {
   public:
    // `undo`: nullptr in a step of the same strategy, where the outer scope is enough.
    Scope(StepUndo* undo, const Options& options);
    // Undoes the step, unless keep() was called.
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;
    void keep() { has_failed_ = false; }
    bool has_failed() const { return has_failed_; }
    bool is_inner() const { return undo_ == nullptr; }
    // Whether no other step has been in progress since this one began.
    bool is_alone() const { return is_alone_ && !undo_->has_overlapped_; }

   private:
    StepUndo* const undo_;
    const bool is_alone_;
    bool has_failed_ = true;
  };

  // A replica's thread calls it when the replica has completed its part of an update: what it has
  // changed until now stays.
  void note_update(std::size_t replica);
  // Before the only write of a replica's value that is no update.
  void about_to_write(MirroredVariable& variable, std::size_t value, std::size_t replica);

  // Variables were written in a context of all replicas or of an update. In a merge this is an
  // update, too, which completes with the merge.
  void note_write_of_all() {
    if (is_in_step_) MergeScope::note_write(*this);
  }

 private:
  struct Value {
    std::shared_ptr<MirroredVariable> variable;
    std::size_t index;
    at::Tensor copy;
    bool may_differ;
  };
  struct Watched {
    std::weak_ptr<MirroredVariable> weak;
    // Only while a step is in progress whose undoing copies it.
    std::shared_ptr<MirroredVariable> variable = {};
    std::vector<at::Tensor> copies = {};  // of each value
    bool may_differ = false;
    bool fits = true;  // into kBytesMax
  };

  bool begin(const Options& options);
  void end(bool is_alone, bool has_failed);
  void choose_watched();
  void copy_values(std::size_t replica);
  void keep_merged() override;
  void undo_step();
  void save_generators();

  std::atomic<bool> is_in_step_ = false;      // of one step alone
  std::atomic<bool> has_overlapped_ = false;  // another step began since
  Mutex mutex_;
  int open_ COHORT_GUARDED_BY(mutex_) = 0;
  std::vector<std::weak_ptr<MirroredVariable>> new_ COHORT_GUARDED_BY(mutex_);
  std::atomic<bool> has_new_ = false;
  std::atomic<bool> has_warned_ = false;
  // These belong to the step that is alone; of each replica's part, to its thread.
  std::vector<Watched> watched_;
  std::vector<std::vector<Value>> journals_;  // of each replica: the values before writes
  const c10::Device first_device_;
  bool draws_ = false;  // from the default generators
  const std::unique_ptr<SavedGenerator> of_cpu_, of_gpu_;
};

}  // namespace cohort::internal
