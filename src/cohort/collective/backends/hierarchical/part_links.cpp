// SPDX-License-Identifier: Apache-2.0
#include "cohort/collective/backends/hierarchical/part_links.h"

#include <algorithm>
#include <array>
#include <utility>

#include "cohort/core/error.h"

namespace cohort::collective::hierarchical {
namespace {

using Part = DividedLinks::Part;

// Where the lanes of each part begin.
constexpr std::array kFirstLanes = {0, 2, 4, 5};
constexpr int kLanesOfRoot = 7;
// Splits share the memory of the group of all members.
constexpr int kLanesOfSplit = kFirstLanes[static_cast<std::size_t>(Part::block)];

int lanes_of(const SplitPath& path) { return path.empty() ? kLanesOfRoot : kLanesOfSplit; }

}  // namespace

void DividedLinks::open(const SplitPath& path, Deadline deadline) {
  {
    const Lock lock(mutex_);
    if (opened_.contains(path)) return;
  }
  // Without the lock: another thread may open another split, in another order than other members.
  std::vector<FileDescriptor> opened = links_->open(path, lanes_of(path), deadline);
  const Lock lock(mutex_);
  opened_[path] = std::move(opened);
}

void DividedLinks::close_rest(const SplitPath& path) {
  const Lock lock(mutex_);
  opened_.erase(path);
}

std::vector<FileDescriptor> DividedLinks::take(Part part, const SplitPath& path, int lanes,
                                               Deadline deadline) {
  const int all = lanes_of(path);
  const int first = kFirstLanes[static_cast<std::size_t>(part)];
  COHORT_ASSERT(first + lanes <= all);
  open(path, deadline);
  const Lock lock(mutex_);
  std::vector<FileDescriptor>& opened = opened_[path];
  std::vector<FileDescriptor> taken;
  for (int rank = 0; rank < links_->size(); ++rank) {
    for (int lane = first; lane < first + lanes; ++lane)
      taken.push_back(std::move(opened[static_cast<std::size_t>(rank * all + lane)]));
  }
  return taken;
}

PartLinks::PartLinks(std::shared_ptr<DividedLinks> whole, DividedLinks::Part part,
                     std::vector<int> ranks)
    : whole_(std::move(whole)), part_(part), ranks_(std::move(ranks)) {
  const auto mine = std::find(ranks_.begin(), ranks_.end(), whole_->links()->rank());
  COHORT_ASSERT(mine != ranks_.end());
  rank_ = static_cast<int>(mine - ranks_.begin());
}

std::vector<FileDescriptor> PartLinks::open(const SplitPath& path, int lanes, Deadline deadline) {
  std::vector<FileDescriptor> all = whole_->take(part_, path, lanes, deadline);
  std::vector<FileDescriptor> mine;
  for (const int rank : ranks_) {
    for (int lane = 0; lane < lanes; ++lane)
      mine.push_back(std::move(all[static_cast<std::size_t>(rank * lanes + lane)]));
  }
  return mine;
}

}  // namespace cohort::collective::hierarchical
