// SPDX-License-Identifier: Apache-2.0
// Workers that are threads of one process, for tests and for programs that have outgrown one
// thread: what collectives between processes will do, over shared memory.
//
//   InProcessWorkers workers(2);
//   std::thread other([&] { MultiWorkerMirroredStrategy strategy(workers.group(1), …); … });
#pragma once

#include <memory>

#include "cohort/core/export.h"
#include "cohort/input/step_agreement.h"

namespace cohort {

// A handle; groups keep what they share. Thread-safe.
class COHORT_API InProcessWorkers {
 public:
  explicit InProcessWorkers(int num_workers);
  // What worker `worker` sees, once a worker. When it goes, whoever waits for the worker fails.
  std::shared_ptr<WorkerGroup> group(int worker) const;

 private:
  class Hub;
  class Group;
  class Conversation;
  std::shared_ptr<Hub> hub_;
};

}  // namespace cohort
