// SPDX-License-Identifier: Apache-2.0
// The properties of a strategy that its input needs.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cohort/collective/group.h"
#include "cohort/core/clock.h"
#include "cohort/core/device.h"
#include "cohort/core/error.h"
#include "cohort/core/export.h"
#include "cohort/input/detail/device_memory.h"
#include "cohort/input/detail/worker_calls.h"

namespace cohort::input {

// Immutable once made, but for `worker_calls` and `is_over`; shared by a strategy and its
// distributed datasets. A strategy whose workers form a new group makes another one.
struct COHORT_API InputHost {
  std::string strategy = "default";               // for messages
  std::vector<Device> devices = {Device()};       // of this worker's replicas
  std::shared_ptr<collective::Group> group = {};  // nullptr: one worker
  // Elements are the dataset's own: no policy applies (the default strategy).
  bool passes_through = false;
  // Fills up the last step with empty batches; false for a single device.
  bool handles_partial_batches = true;
  bool allows_per_replica = false;
  // A value from a function is wrapped, even if there is one replica.
  bool wraps_values = true;
  // Throws if this thread is inside a replica function; `method` is for the message.
  std::function<void(std::string_view method)> check_context = [](std::string_view) {};
  std::shared_ptr<const DeviceMemory> memory = libtorch_memory();
  // The timeout of each wait for other workers.
  Duration timeout = std::chrono::minutes(5);
  // Used if there are several workers.
  std::shared_ptr<WorkerCalls> worker_calls = std::make_shared<WorkerCalls>();
  // The workers no longer are this group. Copies of this host share it.
  std::shared_ptr<std::atomic<bool>> is_over = std::make_shared<std::atomic<bool>>(false);

  // Throws failed_precondition if the group is over; `method` is for the message.
  void check_current(std::string_view method) const {
    COHORT_CHECK(!*is_over, ErrorCode::failed_precondition, "[input.", method,
                 "] expected a distributed dataset for the present group of workers, got one of "
                 "before rebuild(), which divided the data in another way; make it again after "
                 "rebuild(), and if that has failed, call it again before");
  }
  int num_workers() const { return group ? group->size() : 1; }
  int worker() const { return group ? group->rank() : 0; }
  int num_local_replicas() const { return static_cast<int>(devices.size()); }
  int num_replicas_in_sync() const { return num_workers() * num_local_replicas(); }
  // Elements are not wrapped, since there is one replica in the whole job.
  bool is_bare() const { return num_replicas_in_sync() == 1; }
};

}  // namespace cohort::input
