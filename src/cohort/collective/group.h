// SPDX-License-Identifier: Apache-2.0
// The workers of a synchronous job, and how they exchange messages (the role that
// torch.distributed's ProcessGroup and tf's collective ops have).
#pragma once

#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "cohort/core/bytes.h"
#include "cohort/core/clock.h"
#include "cohort/core/export.h"

namespace cohort::collective {

// A group of `size()` members, as the member `rank()` of them sees it. All members make the same
// calls of exchange() in the same order. Every wait has a deadline, whose error names the members
// that were missing.
//
// If a member is destroyed, the calls of the others that need its contribution fail as aborted. A
// missed deadline ends the group for all members, since the one that missed it would be a call
// ahead of the others: later calls are aborted.
//
// exchange() is used from one thread at a time; split() is thread-safe.
class COHORT_API Group {
 public:
  Group() = default;
  virtual ~Group() = default;
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  // Returns the contributions of all members in the order of their ranks. `what` says in messages
  // what is exchanged. Throws deadline_exceeded or aborted, and names the missing members.
  virtual std::vector<Bytes> exchange(Bytes mine, std::string_view what, Deadline deadline) = 0;
  // A group of the same members whose calls are independent of this one's, as from MPI_Comm_dup.
  // The n-th call on each member gives the same group. The split keeps this group alive.
  virtual std::shared_ptr<Group> split() = 0;
};

// Calls `make` and exchanges what it returns. If it throws on a member, all members throw that
// error, with the member ("worker:<rank>") as origin; of several errors that of the lowest rank.
COHORT_API std::vector<Bytes> exchange_result(Group& group, const std::function<Bytes()>& make,
                                              std::string_view what, Deadline deadline);

}  // namespace cohort::collective

namespace cohort {

// Workers that are threads of one process, for tests and for programs that have outgrown one
// thread. They exchange messages through shared memory.
//
//   InProcessWorkers workers(2);
//   std::thread other([&] { MultiWorkerMirroredStrategy strategy(workers.group(1)); … });
//
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
