// SPDX-License-Identifier: Apache-2.0
// Groups whose members are threads of one process.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string_view>
#include <vector>

#include "cohort/collective/backends/in_process/meeting.h"
#include "cohort/collective/group.h"
#include "cohort/core/mutex.h"

namespace cohort::collective::in_process {

// Identifies a split: the numbers of the splits from the group of all workers down to it.
using SplitPath = std::vector<std::uint64_t>;

// The meetings of a group and of all its splits. Thread-safe.
class Splits {
 public:
  explicit Splits(int size) : size_(size), has_gone_(static_cast<std::size_t>(size)) {}
  int size() const { return size_; }

  // The meeting of this split, for a member that joins it.
  std::shared_ptr<Meeting> join(const SplitPath& path);
  void leave(const SplitPath& path, int rank);
  // Ends the membership of `rank` in the group and in all its splits: no member waits for a worker
  // that failed between two calls either.
  void leave_all(int rank);

 private:
  struct Split {
    std::shared_ptr<Meeting> meeting = {};  // shared with its members
    int num_left = 0;
  };
  Split& split(const SplitPath& path) COHORT_REQUIRES(mutex_);

  const int size_;
  Mutex mutex_;
  std::vector<bool> has_gone_ COHORT_GUARDED_BY(mutex_);
  std::map<SplitPath, Split> splits_ COHORT_GUARDED_BY(mutex_);
};

class Member final : public Group, public std::enable_shared_from_this<Member> {
 public:
  // The group of all workers.
  Member(std::shared_ptr<Splits> splits, int rank);
  // A split of `parent`.
  Member(std::shared_ptr<Member> parent, SplitPath path);
  ~Member() override;
  Member(const Member&) = delete;
  Member& operator=(const Member&) = delete;

  int rank() const override { return rank_; }
  int size() const override { return meeting_->size(); }
  std::vector<Bytes> exchange(Bytes mine, std::string_view what, Deadline deadline) override;
  std::shared_ptr<Group> split() override;

 protected:
  void perform(Call& call, Deadline deadline) override;

 private:
  class Unit;
  using Turns = c10::SmallVector<Turn*, 8>;

  // Meets the other members; returns their turns. Throws if their calls differ. `bytes` are for
  // exchange().
  Turns meet(const Call& call, std::string_view what, Deadline deadline, Bytes bytes = {});
  [[noreturn]] void throw_disagreement(const Turns& turns, std::uint64_t number);
  // all_reduce, reduce and broadcast.
  void replace_values(Call& call, const Turns& turns);
  void gather(Call& call, const Turns& turns);
  void reduce_scatter(Call& call, const Turns& turns);
  void share_work(const Call& call, const Turns& turns);

  const std::shared_ptr<Member> parent_;  // nullptr for the group of all workers
  const std::shared_ptr<Splits> splits_;
  const int rank_;
  const SplitPath path_;
  const std::shared_ptr<Meeting> meeting_;
  std::uint64_t num_calls_ = 0;
  std::uint64_t num_units_ = 0;  // of all calls until now, of all members
  std::atomic<std::uint64_t> num_splits_ = 0;
};

}  // namespace cohort::collective::in_process
