// SPDX-License-Identifier: Apache-2.0
// The groups of a process that is one of the workers of a cluster: the first one, of all workers,
// and after losses new ones, of those that are left or have come back.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cohort/collective/group.h"
#include "cohort/core/clock.h"
#include "cohort/core/export.h"

namespace cohort::collective {

struct WorkerTask {
  std::string name = {};     // "worker:1", for messages
  std::string address = {};  // "host:port"
};

struct ProcessGroupOptions {
  // All workers, in the order of their ids; equal in all processes.
  std::vector<WorkerTask> tasks = {};
  int self = 0;  // this process among them
  GroupBackend backend = GroupBackend::automatic;
  // Processes of other jobs, and of other programs, are refused. Equal in all processes.
  std::string job = {};
  // The settings that must be equal for a user of the group, as text for messages: a process with
  // something else is refused before it is in a group.
  std::string options = {};
  // Forms groups also if those who have not come may be the larger side of a network that is
  // divided. Equal in all processes.
  bool allow_minority = false;
};

// A group, and how this process came into it.
struct Membership {
  std::shared_ptr<Group> group = {};
  std::uint64_t number = 0;     // of the group; later groups have larger ones
  std::vector<int> tasks = {};  // the members, in the order of their ranks: indices of all workers
  // The rank of the first member that was in the last group, so that it has the values that all
  // start from; nullopt in the first group.
  std::optional<int> survivor = {};
  // Whether each member comes anew: it was not in the last group, or is another process than then.
  std::vector<bool> is_new = {};
};

}  // namespace cohort::collective

namespace cohort::internal {

// The part of ProcessGroups that a strategy uses. There are others, for the processes of an MPI job
// and in tests. Called by one thread at a time.
class WorkerGroups {
 public:
  virtual ~WorkerGroups() = default;
  virtual collective::Membership form(Deadline deadline, Duration return_wait) = 0;
  // Throws if there can be no group but the first one.
  virtual void check_forms_again() const {}
  // Whether the others have ended the last group because of this process, and go on without it.
  virtual bool is_given_up() { return false; }
  // Whether all others of the last group have ended; true if there can be no group but the first.
  virtual bool have_others_ended(Deadline /*deadline*/) { return true; }
  // The number of the last group, equal on all its workers; 0 if there can be no group but the
  // first.
  virtual std::uint64_t last_number() const { return 0; }
};

}  // namespace cohort::internal

namespace cohort::collective {

// Owns the socket that listens at the address of this task, and a thread that accepts. Thread-safe,
// but form() runs once at a time.
class COHORT_API ProcessGroups final : public internal::WorkerGroups {
 public:
  // Listens from now on. Throws invalid_argument for bad options, resource_exhausted if the address
  // is in use.
  explicit ProcessGroups(ProcessGroupOptions options);
  ~ProcessGroups() override;
  ProcessGroups(const ProcessGroups&) = delete;
  ProcessGroups& operator=(const ProcessGroups&) = delete;

  // Forms a group; ranks are in the order of the tasks.
  //
  // The first time, the group has all workers. Throws deadline_exceeded, naming the missing, and
  // failed_precondition if a process at the address of a worker, or one that says that it is a
  // worker, has another job, list of workers, options or version.
  //
  // Later calls form the next group. The last group ends first, so that calls of its other members
  // fail and they call form(), too. The next group has all workers that have called form() when the
  // members of the last group have; it does not wait for members that have ended or were missed
  // (Links::missed). Other members that have not come shortly before the deadline are left out.
  // A warning names members that are left out.
  //
  // There is no next group that may be the smaller side of a network that is divided
  // (docs/decisions/0099). Members of the last group do not count if their process is known to have
  // ended: on this host, or since its address refuses connections. More than half of the others
  // must have come, or half with the first. Nor is there a group of processes that were told that
  // the others go on without them. Throws unavailable with the cause must_restart then: at the
  // deadline, or at once if nobody can come who would change it.
  //
  // The process of a worker that starts again while the others train waits until they form the next
  // group: as long as they train, also after the deadline, until `return_wait` is over. A member
  // that was left out waits until the deadline. Throws deadline_exceeded if they do not.
  Membership form(Deadline deadline, Duration return_wait = Duration::zero()) override;

  // Whether others go on without this process, and said so: members of the last group have ended it
  // because of this process, or have formed the next one without it. Not during form() or a call of
  // that group.
  bool is_given_up() override;
  // Whether the processes of all other members of the last group are known to have ended, as in
  // form(). Waits until the deadline for those that may just be ending. As is_given_up().
  bool have_others_ended(Deadline deadline) override;
  // The number of the last group, also of one that has ended; 0: there was none.
  std::uint64_t last_number() const override;

 private:
  class State;
  std::unique_ptr<State> state_;
};

}  // namespace cohort::collective
