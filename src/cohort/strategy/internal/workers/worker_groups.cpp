// SPDX-License-Identifier: Apache-2.0
#include "cohort/strategy/internal/workers/worker_groups.h"

#include <utility>

namespace cohort::internal {
namespace {

// Used by one thread at a time.
class GroupsOfProcesses final : public WorkerGroups {
 public:
  explicit GroupsOfProcesses(collective::ProcessGroupOptions options)
      : groups_(std::move(options)) {}
  collective::Membership form(Deadline deadline) override { return groups_.form(deadline); }

 private:
  collective::ProcessGroups groups_;
};

}  // namespace

std::unique_ptr<WorkerGroups> groups_of_processes(collective::ProcessGroupOptions options) {
  return std::make_unique<GroupsOfProcesses>(std::move(options));
}

}  // namespace cohort::internal
