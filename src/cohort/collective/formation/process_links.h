// SPDX-License-Identifier: Apache-2.0
// The links between the processes of one group.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cohort/collective/formation/conversation.h"
#include "cohort/collective/formation/link_table.h"
#include "cohort/collective/formation/message.h"
#include "cohort/collective/links.h"
#include "cohort/collective/process_groups.h"

namespace cohort::collective::formation {

// Thread-safe.
class ProcessLinks final : public Links {
 public:
  // `table`: shared with ProcessGroups, which ends it when it forms the next group.
  ProcessLinks(const std::vector<WorkerTask>& tasks, Identity self, Proposal group,
               std::shared_ptr<LinkTable> table);

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(members_.size()); }
  const std::string& member_name(int rank) const override { return member(rank).task.name; }
  const std::string& host(int rank) const override { return member(rank).host; }
  std::int64_t process(int rank) const override { return member(rank).process; }
  std::vector<FileDescriptor> open(const SplitPath& path, int lanes, Deadline deadline) override;
  void missed(int rank, std::string_view why) override;

 private:
  class Opening;
  struct LinkMember {
    Member who = {};
    WorkerTask task = {};
    std::string host = {};
    std::int64_t process = 0;
  };

  const LinkMember& member(int rank) const { return members_[static_cast<std::size_t>(rank)]; }

  const Identity self_;
  const std::uint64_t number_;
  // It is shared because a group may be used after the object that formed it.
  const std::shared_ptr<LinkTable> table_;
  std::vector<LinkMember> members_;
  int rank_ = 0;
};

}  // namespace cohort::collective::formation
