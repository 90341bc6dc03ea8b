// SPDX-License-Identifier: Apache-2.0
// Workers that are threads of one process, for tests and for programs that have outgrown one
// thread. They exchange messages through shared memory.
//
//   InProcessWorkers workers(2);
//   std::thread other([&] { MultiWorkerMirroredStrategy strategy(workers.group(1), …); … });
#pragma once

#include <memory>

#include "cohort/core/export.h"
#include "cohort/input/step_agreement.h"

namespace cohort {

// A handle; the groups keep the shared state alive. Thread-safe.
class COHORT_API InProcessWorkers {
 public:
  explicit InProcessWorkers(int num_workers);
  // The group as worker `worker` sees it; call it once per worker. When the group is destroyed,
  // waits for this worker fail.
  std::shared_ptr<WorkerGroup> group(int worker) const;

 private:
  class Hub;
  class Group;
  class Conversation;
  std::shared_ptr<Hub> hub_;
};

}  // namespace cohort
