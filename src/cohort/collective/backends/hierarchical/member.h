// SPDX-License-Identifier: Apache-2.0
// A member of a group of processes on several hosts.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cohort/collective/backends/hierarchical/blocks.h"
#include "cohort/collective/backends/hierarchical/part_links.h"
#include "cohort/collective/backends/shared_memory/member.h"
#include "cohort/collective/backends/tcp/member.h"
#include "cohort/collective/group.h"
#include "cohort/core/mutex.h"

namespace cohort::collective::hierarchical {

// Three groups: `all` of all members, over sockets; that of the member's block, in shared memory;
// and that of the leaders of the blocks, over sockets. The latter two are nullptr where this member
// is alone in its block, or is not its leader.
//
// Most calls are those of `all`. A large sum or broadcast begins as a call of `all` that has no
// values. So the members find out there, as in any call, who is missing and whether they differ,
// and `all` has the number of the call. Then the values pass through the other two groups.
//
// If that fails on a member, it ends `all` with the reason, and only then the other two. A member
// whose block or leaders end finds the reason in `all`, and so does one that waits for them, since
// it watches `all`. So all members throw the same error. A member that waits for one that may wait
// itself gives up later than that one, up to 4 seconds after the deadline, by which all have begun
// the call.
//
// Used from one thread at a time, but for split(), which is thread-safe.
class Member final : public Group, public EndedGroup {
 public:
  struct Parts {
    std::shared_ptr<tcp::FrameMember> all = {};
    std::shared_ptr<shared_memory::Member> block = {};
    std::shared_ptr<tcp::FrameMember> leaders = {};
  };
  // The path of the group from that of all members; `mine`: the number of this member's block.
  Member(std::shared_ptr<DividedLinks> links, std::vector<Block> blocks, int mine, Parts parts,
         SplitPath path);

  int rank() const override { return parts_.all->rank(); }
  int size() const override { return parts_.all->size(); }
  std::string member_name(int rank) const override { return parts_.all->member_name(rank); }
  std::vector<Bytes> exchange(Bytes mine, std::string_view what, Deadline deadline) override;
  std::shared_ptr<Group> split() override;
  void look_for_end() override { parts_.all->look_for_end(); }

  // Connects the members before the first call, which is of this kind.
  void connect(CallKind kind, Deadline deadline);

 protected:
  void perform(Call& call, Deadline deadline) override;

 private:
  // By when the others must have begun a call.
  Deadline for_beginning(Deadline deadline) const;
  // All have begun a call of `all` in this group.
  void note_beginning();
  void all_reduce(const Call& call, Deadline deadline);
  void broadcast(const Call& call, Deadline deadline);
  // The leader gives its block what it got from the other leaders.
  void give_to_block(const std::vector<at::Tensor>& values, Deadline deadline);
  [[noreturn]] void fail(const Call& call, const Error& error);

  const std::shared_ptr<DividedLinks> links_;
  const std::vector<Block> blocks_;
  const int mine_;
  const Parts parts_;
  const SplitPath path_;
  bool is_connected_ = false;
  CallKind kind_ = CallKind::barrier;  // of the last call that has stages
  // Until when others may still be in that call, if this member has finished it.
  TimePoint behind_until_ = {};
  Mutex split_mutex_;  // so that the splits of all parts have the same number
  std::uint64_t num_splits_ COHORT_GUARDED_BY(split_mutex_) = 0;
};

// The group of all members of `links`, for which is_useful(). Connects them at once. If one member
// cannot take part, all throw its error.
std::shared_ptr<Group> join(std::shared_ptr<Links> links, Deadline deadline);

}  // namespace cohort::collective::hierarchical
