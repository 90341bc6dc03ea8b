// SPDX-License-Identifier: Apache-2.0
// The workers of a synchronous job, which exchange messages with each other (the role of
// torch.distributed's ProcessGroup and tf's collective ops).
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cohort/core/bytes.h"
#include "cohort/core/clock.h"
#include "cohort/core/export.h"

namespace cohort::collective {

// A group of size() members; each object is the view of one member, rank(). All members must make
// the same calls of exchange() in the same order. Every wait has a deadline, and its error names
// the members that were missing.
//
// If a member is destroyed, calls of the others that need its contribution throw aborted. If one
// member misses a deadline, it would be one call ahead of the others. So the group ends for all
// members: later calls throw aborted.
//
// exchange() must be called from one thread at a time; split() is thread-safe.
class COHORT_API Group {
 public:
  Group() = default;
  virtual ~Group() = default;
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  // The name of a member in messages, and the origin of its errors.
  virtual std::string member_name(int rank) const { return "worker:" + std::to_string(rank); }
  // Returns the contributions of all members in the order of their ranks. `what` is the name of the
  // content, for messages. Throws deadline_exceeded or aborted, naming the missing members.
  virtual std::vector<Bytes> exchange(Bytes mine, std::string_view what, Deadline deadline) = 0;
  // Returns a new group of the same members, whose calls are independent of this one's (like
  // MPI_Comm_dup). The n-th calls of all members return the same group, so all members must create
  // their groups in the same order. The new group keeps this one alive.
  virtual std::shared_ptr<Group> split() = 0;
};

// Calls `make` and exchanges the results. If it throws on one member, all members throw that error,
// with that member's name as its origin; if it throws on several, the error of the
// lowest rank.
COHORT_API std::vector<Bytes> exchange_result(Group& group, const std::function<Bytes()>& make,
                                              std::string_view what, Deadline deadline);

}  // namespace cohort::collective

namespace cohort {

// Creates the groups of workers that are threads of one process, for tests and for programs that
// use several threads. The workers exchange messages through shared memory.
//
//   InProcessWorkers workers(2);
//   std::thread other([&] { MultiWorkerMirroredStrategy strategy(workers.group(1)); … });
//
// A handle; the groups keep the shared state alive. Thread-safe.
class COHORT_API InProcessWorkers {
 public:
  // Throws invalid_argument if num_workers < 1.
  explicit InProcessWorkers(int num_workers);
  // The group of all workers, for the worker of this rank; call it once per worker. Throws
  // invalid_argument if the rank is not in [0, num_workers).
  std::shared_ptr<collective::Group> group(int rank) const;

 private:
  class Rendezvous;
  class Member;
  std::shared_ptr<Rendezvous> rendezvous_;
};

}  // namespace cohort
