// SPDX-License-Identifier: Apache-2.0
#include "cohort/collective/group.h"

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cohort/core/detail/mutex.h"
#include "cohort/core/error.h"

namespace cohort {
namespace {

// Identifies a split: the numbers of the splits from the group of all workers down to it.
using SplitPath = std::vector<std::uint64_t>;

}  // namespace

// Where the threads meet: the state of a group and of all its splits. Thread-safe.
class InProcessWorkers::Rendezvous {
 public:
  explicit Rendezvous(int size) : size_(size), has_gone_(static_cast<std::size_t>(size)) {}
  int size() const { return size_; }

  std::vector<Bytes> exchange(const SplitPath& path, std::uint64_t call,
                              const collective::Group& member, Bytes mine, std::string_view what,
                              Deadline deadline) {
    const Lock lock(mutex_);
    Split& here = splits_[path];
    if (!here.missed.empty()) refuse_after_deadline(here, what);
    Call& now = here.calls.try_emplace(call, Call(size_)).first->second;
    now.contributions[static_cast<std::size_t>(member.rank())] = std::move(mine);
    now.num_contributions += 1;
    if (now.num_contributions == size_) changed_.notify_all();
    const auto is_settled = [&]() COHORT_REQUIRES(mutex_) {
      return now.num_contributions == size_ || !here.missed.empty() || first_gone(here, now) >= 0;
    };
    changed_.wait(mutex_, deadline, is_settled);
    if (now.num_contributions < size_) {
      if (!here.missed.empty()) refuse_after_deadline(here, what);
      // The contribution stays here, so that the call of a slower member finds it.
      if (const int gone = first_gone(here, now); gone >= 0)
        refuse_without(member.member_name(gone), what);
      give_up(here, now, member, what);
    }
    std::vector<Bytes> all;
    for (const std::optional<Bytes>& contribution : now.contributions) all.push_back(*contribution);
    now.num_returned += 1;
    if (now.num_returned == size_) here.calls.erase(call);
    return all;
  }

  // Ends the membership of `rank` in the group and in all its splits: no member waits for a worker
  // that failed between two exchanges either.
  void leave_all(int rank) {
    const Lock lock(mutex_);
    has_gone_[static_cast<std::size_t>(rank)] = true;
    changed_.notify_all();
  }

  void leave(const SplitPath& path, int rank) {
    const Lock lock(mutex_);
    Split& here = splits_[path];
    if (here.has_left.empty()) here.has_left.resize(static_cast<std::size_t>(size_));
    here.has_left[static_cast<std::size_t>(rank)] = true;
    here.num_left += 1;
    if (here.num_left == size_) splits_.erase(path);
    changed_.notify_all();
  }

 private:
  // One call of exchange(), until every member has returned from it.
  struct Call {
    explicit Call(int size) : contributions(static_cast<std::size_t>(size)) {}
    std::vector<std::optional<Bytes>> contributions;
    int num_contributions = 0;
    int num_returned = 0;
  };
  struct Split {
    std::map<std::uint64_t, Call> calls;
    std::vector<bool> has_left;
    int num_left = 0;
    std::string missed;  // the missed deadline: who waited for whom
  };

  // A member that left before it contributed to this call, or -1.
  int first_gone(const Split& split, const Call& call) const COHORT_REQUIRES(mutex_) {
    for (std::size_t i = 0; i < call.contributions.size(); ++i) {
      const bool has_left = has_gone_[i] || (!split.has_left.empty() && split.has_left[i]);
      if (has_left && !call.contributions[i]) return static_cast<int>(i);
    }
    return -1;
  }

  [[noreturn]] static void refuse_without(const std::string& name, std::string_view what) {
    throw Error(ErrorCode::aborted,
                "[collective.exchange] expected " + name + " to take part in " + std::string(what) +
                    ", got the end of its group; all workers make the same calls")
        .at(name);
  }

  // `member` would be a call ahead of the members that it waited for, so the exchange ends for all.
  [[noreturn]] void give_up(Split& split, const Call& call, const collective::Group& member,
                            std::string_view what) COHORT_REQUIRES(mutex_) {
    std::string missing;
    for (std::size_t i = 0; i < call.contributions.size(); ++i) {
      if (call.contributions[i]) continue;
      missing += (missing.empty() ? "" : ", ") + member.member_name(static_cast<int>(i));
    }
    split.missed = member.member_name(member.rank()) + " has waited in vain for " + missing;
    changed_.notify_all();
    internal::throw_error(ErrorCode::deadline_exceeded, "[collective.exchange] expected all ",
                          "workers to take part in ", what, " in time, got nothing from ", missing);
  }

  [[noreturn]] static void refuse_after_deadline(const Split& split, std::string_view what) {
    internal::throw_error(ErrorCode::aborted, "[collective.exchange] expected to take part in ",
                          what, ", got the end of all workers' group: ", split.missed,
                          "; begin a new one on all");
  }

  const int size_;
  Mutex mutex_;
  Condition changed_;
  std::vector<bool> has_gone_ COHORT_GUARDED_BY(mutex_);
  std::map<SplitPath, Split> splits_ COHORT_GUARDED_BY(mutex_);
};

class InProcessWorkers::Member final : public collective::Group,
                                       public std::enable_shared_from_this<Member> {
 public:
  // The group of all workers.
  Member(std::shared_ptr<Rendezvous> rendezvous, int rank)
      : rendezvous_(std::move(rendezvous)), rank_(rank) {}
  // A split of `parent`.
  Member(std::shared_ptr<Member> parent, SplitPath path)
      : parent_(std::move(parent)),
        rendezvous_(parent_->rendezvous_),
        rank_(parent_->rank_),
        path_(std::move(path)) {}
  ~Member() override {
    rendezvous_->leave(path_, rank_);
    if (!parent_) rendezvous_->leave_all(rank_);
  }
  Member(const Member&) = delete;
  Member& operator=(const Member&) = delete;

  int rank() const override { return rank_; }
  int size() const override { return rendezvous_->size(); }
  std::vector<Bytes> exchange(Bytes mine, std::string_view what, Deadline deadline) override {
    return rendezvous_->exchange(path_, num_calls_++, *this, std::move(mine), what, deadline);
  }
  std::shared_ptr<Group> split() override {
    SplitPath path = path_;
    path.push_back(num_splits_++);
    return std::make_shared<Member>(shared_from_this(), std::move(path));
  }

 private:
  const std::shared_ptr<Member> parent_;  // nullptr for the group of all workers
  const std::shared_ptr<Rendezvous> rendezvous_;
  const int rank_;
  const SplitPath path_;
  std::uint64_t num_calls_ = 0;
  std::atomic<std::uint64_t> num_splits_ = 0;
};

InProcessWorkers::InProcessWorkers(int num_workers) {
  COHORT_CHECK(num_workers > 0, ErrorCode::invalid_argument,
               "[collective.workers] expected num_workers > 0, got ", num_workers);
  rendezvous_ = std::make_shared<Rendezvous>(num_workers);
}

std::shared_ptr<collective::Group> InProcessWorkers::group(int rank) const {
  COHORT_CHECK(rank >= 0 && rank < rendezvous_->size(), ErrorCode::invalid_argument,
               "[collective.workers] expected a rank in [0, ", rendezvous_->size(), "), got ",
               rank);
  return std::make_shared<Member>(rendezvous_, rank);
}

}  // namespace cohort
