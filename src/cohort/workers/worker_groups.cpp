// SPDX-License-Identifier: Apache-2.0
#include "cohort/workers/worker_groups.h"

#include <utility>

#include "cohort/core/error.h"

namespace cohort::internal {
namespace {

// Used by one thread at a time.
class GroupsOfProcesses final : public WorkerGroups {
 public:
  explicit GroupsOfProcesses(collective::ProcessGroupOptions options)
      : groups_(std::move(options)) {}
  collective::Membership form(Deadline deadline, Duration return_wait) override {
    return groups_.form(deadline, return_wait);
  }
  bool is_given_up() override { return groups_.is_given_up(); }
  bool have_others_ended(Deadline deadline) override { return groups_.have_others_ended(deadline); }
  std::uint64_t last_number() const override { return groups_.last_number(); }

 private:
  collective::ProcessGroups groups_;
};

// Used by one thread at a time.
class GroupOfMpi final : public WorkerGroups {
 public:
  explicit GroupOfMpi(collective::MpiTasks tasks) : tasks_(std::move(tasks)) {}
  collective::Membership form(Deadline deadline, Duration /*return_wait*/) override {
    collective::Membership membership{.group = collective::mpi_group(tasks_, deadline),
                                      .number = 1};
    for (int rank = 0; rank < membership.group->size(); ++rank) membership.tasks.push_back(rank);
    membership.is_new.assign(membership.tasks.size(), true);
    return membership;
  }
  void check_forms_again() const override {
    throw Error(ErrorCode::unimplemented,
                "[strategy.rebuild] expected workers that can go on after a loss, got those of "
                "GroupBackend::mpi, whose job ends with each of its processes; start the job again "
                "from its last checkpoint, or use GroupBackend::automatic",
                ErrorCause::must_restart);
  }

 private:
  const collective::MpiTasks tasks_;
};

}  // namespace

std::unique_ptr<WorkerGroups> groups_of_processes(collective::ProcessGroupOptions options) {
  return std::make_unique<GroupsOfProcesses>(std::move(options));
}

std::unique_ptr<WorkerGroups> groups_of_mpi(collective::MpiTasks tasks) {
  return std::make_unique<GroupOfMpi>(std::move(tasks));
}

}  // namespace cohort::internal
