// SPDX-License-Identifier: Apache-2.0
// Workers that are threads of one process, for tests and for programs that have outgrown one
// thread. They exchange messages through shared memory.
//
//   InProcessWorkers workers(2);
//   std::thread other([&] { MultiWorkerMirroredStrategy strategy(workers.group(1)); … });
#pragma once

#include <memory>

#include "cohort/collective/group.h"
#include "cohort/core/export.h"

namespace cohort {

// A handle; the groups keep the shared state alive. Thread-safe.
class COHORT_API InProcessWorkers {
 public:
  // Throws invalid_argument if num_workers < 1.
  explicit InProcessWorkers(int num_workers);
  // The group of all workers, as the worker of this rank sees it; call it once per worker. Throws
  // invalid_argument for a rank outside [0, num_workers).
  std::shared_ptr<collective::Group> group(int rank) const;

 private:
  class Rendezvous;
  class Member;
  std::shared_ptr<Rendezvous> rendezvous_;
};

}  // namespace cohort
