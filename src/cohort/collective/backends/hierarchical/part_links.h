// SPDX-License-Identifier: Apache-2.0
// The connections of groups that have some of the members of a larger one.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cohort/collective/links.h"
#include "cohort/core/file_descriptor.h"
#include "cohort/core/mutex.h"

namespace cohort::collective::hierarchical {

// Links can only connect all members. So the connections of all parts are opened together, each in
// lanes of its own; those between members that are not in one part are closed again. One member's
// view. Thread-safe.
class DividedLinks {
 public:
  // The parts, in the order of their lanes.
  enum class Part : std::uint8_t { all, leaders, block, forming };

  explicit DividedLinks(std::shared_ptr<Links> links) : links_(std::move(links)) {}
  const std::shared_ptr<Links>& links() const { return links_; }

  // Opens the connections of all parts of the group of this path, once; one thread at a time does
  // it for each path.
  void open(const SplitPath& path, Deadline deadline);
  // The connections of one part to all members, as Links::open() returns them; opens them if need
  // be.
  std::vector<FileDescriptor> take(Part part, const SplitPath& path, int lanes, Deadline deadline);
  // Closes what no part has taken.
  void close_rest(const SplitPath& path);

  // Until when other members may still be in a call of the group or of a split that this member has
  // finished: for whom waits for them in another one of these groups.
  std::atomic<TimePoint>& behind_until() { return behind_until_; }

 private:
  const std::shared_ptr<Links> links_;
  Mutex mutex_;
  // By path; of each member, all lanes.
  std::map<SplitPath, std::vector<FileDescriptor>> opened_ COHORT_GUARDED_BY(mutex_);
  std::atomic<TimePoint> behind_until_ = TimePoint();
};

// Thread-safe.
class PartLinks final : public Links {
 public:
  // `ranks`: the members of the part, of which this process is one, as the whole group numbers
  // them.
  PartLinks(std::shared_ptr<DividedLinks> whole, DividedLinks::Part part, std::vector<int> ranks);

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(ranks_.size()); }
  const std::string& member_name(int rank) const override {
    return whole_->links()->member_name(of_whole(rank));
  }
  const std::string& host(int rank) const override { return whole_->links()->host(of_whole(rank)); }
  std::int64_t process(int rank) const override { return whole_->links()->process(of_whole(rank)); }
  std::vector<FileDescriptor> open(const SplitPath& path, int lanes, Deadline deadline) override;
  void missed(int rank, std::string_view why) override {
    // A part may blame a member that waits for another one. The reason comes from `all`.
    const bool is_partial =
        part_ == DividedLinks::Part::leaders || part_ == DividedLinks::Part::block;
    if (!is_partial) whole_->links()->missed(of_whole(rank), why);
  }

 private:
  int of_whole(int rank) const { return ranks_[static_cast<std::size_t>(rank)]; }

  const std::shared_ptr<DividedLinks> whole_;
  const DividedLinks::Part part_;
  const std::vector<int> ranks_;
  int rank_ = 0;
};

}  // namespace cohort::collective::hierarchical
