// SPDX-License-Identifier: Apache-2.0
// The cut that a store has now, if it has one, and when it ends by itself.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "cohort/core/clock.h"
#include "cohort/core/mutex.h"
#include "cohort/parameter_server/store/cut_memory.h"
#include "cohort/rpc/messages.h"

namespace cohort::parameter_server {

// Thread-safe.
class StoreCut {
 public:
  // Whether there is one; cheap.
  bool is_open() const { return is_open_.load(std::memory_order_acquire); }
  // The memory of a new cut, which takes the place of the one that was open.
  std::shared_ptr<CutMemory> open(const rpc::CutRequest& request);
  // Ends this cut, if it is open; 0: any. Returns whether it was. `why`: for who asks for it later.
  bool close(std::uint64_t cut, const std::string& why);
  // For an export. Throws aborted, with the reason, if this cut is not open. It has been asked for,
  // and so stays longer.
  void use(std::uint64_t cut);

  struct Wait {
    std::uint64_t cut = 0;
    std::shared_ptr<CutMemory> memory;  // nullptr: there is none
    Duration most = Duration::zero();   // how long an update may wait
    bool is_idle = false;               // nobody has asked for it for too long
  };
  Wait wait() const;

 private:
  std::atomic<bool> is_open_ = false;
  mutable Mutex mutex_;
  std::uint64_t cut_ COHORT_GUARDED_BY(mutex_) = 0;
  std::shared_ptr<CutMemory> memory_ COHORT_GUARDED_BY(mutex_);
  Duration wait_max_ COHORT_GUARDED_BY(mutex_) = Duration::zero();
  Duration idle_max_ COHORT_GUARDED_BY(mutex_) = Duration::zero();
  Deadline idle_ COHORT_GUARDED_BY(mutex_);
  std::string why_ COHORT_GUARDED_BY(mutex_);  // the last one has ended
};

}  // namespace cohort::parameter_server
