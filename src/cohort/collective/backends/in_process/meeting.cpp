// SPDX-License-Identifier: Apache-2.0
#include "cohort/collective/backends/in_process/meeting.h"

#include <algorithm>

#include "cohort/core/error.h"

namespace cohort::collective::in_process {
namespace {

constexpr std::uint64_t kWithdrawn = ~std::uint64_t{0};

}  // namespace

Meeting::Meeting(int size)
    : size_(size),
      members_(std::make_unique<Member[]>(static_cast<std::size_t>(size))),
      gate_(size) {}

bool Meeting::has_begun(int rank, std::uint64_t call) {
  return turn(rank, call).begun.load(std::memory_order_seq_cst) == call + 1;
}

bool Meeting::have_all_begun(std::uint64_t call) {
  for (int rank = 0; rank < size_; ++rank) {
    if (!has_begun(rank, call)) return false;
  }
  // One of the first may have withdrawn its turn while this thread waited for the last. In a group
  // of two, each member has begun the call itself before it looked at the other.
  for (int rank = 0; size_ > 2 && rank < size_; ++rank) {
    if (!has_begun(rank, call)) return false;
  }
  return true;
}

void Meeting::check_open(const Caller& caller) {
  if (has_ended_.load(std::memory_order_seq_cst)) refuse(caller, /*is_open=*/false);
}

void Meeting::meet(const Caller& caller, const Offer& offer, Deadline deadline) {
  Turn& mine = turn(caller.member.rank(), caller.call);
  // Both at once, for others look at this cache line all the time, and take it away.
  mine.offer = offer;
  mine.begun.exchange(caller.call + 1, std::memory_order_seq_cst);
  gate_.notify();
  const auto is_settled = [&] {
    return have_all_begun(caller.call) || has_ended_.load(std::memory_order_seq_cst);
  };
  if (!gate_.wait(is_settled, deadline)) {
    const std::string missing = give_up(caller);
    if (!missing.empty())
      throw late_error(caller, "nothing from " + missing).at(missing.substr(0, missing.find(',')));
    gate_.wait(is_settled, Deadline());
  }
  if (have_all_begun(caller.call)) return;
  // A member that gives up withdraws its turn under the lock, and takes that back there if all have
  // begun. So only the lock tells whether one is missing. A member that has left or withdrawn
  // without having begun will never begin: all members decide alike, also if it has ended since.
  bool is_missing = false;
  {
    const Lock lock(mutex_);
    is_missing = !have_all_begun(caller.call);
  }
  if (is_missing) refuse(caller, /*is_open=*/true);
}

std::string Meeting::give_up(const Caller& caller) {
  const int mine = caller.member.rank();
  std::string missing;
  {
    const Lock lock(mutex_);
    if (has_ended_.load(std::memory_order_seq_cst)) return "";
    std::atomic<std::uint64_t>& begun = turn(mine, caller.call).begun;
    begun.exchange(kWithdrawn, std::memory_order_seq_cst);
    for (int rank = 0; rank < size_; ++rank) {
      if (rank == mine || has_begun(rank, caller.call)) continue;
      missing += (missing.empty() ? "" : ", ") + caller.member.member_name(rank);
      missing_.push_back(rank);
    }
    if (missing.empty()) {
      begun.exchange(caller.call + 1, std::memory_order_seq_cst);
    } else {
      missed_ = caller.member.member_name(mine) + " has waited in vain for " + missing;
      has_ended_.exchange(true, std::memory_order_seq_cst);
    }
  }
  gate_.notify();
  return missing;
}

void Meeting::refuse(const Caller& caller, bool is_open) {
  // Who ends the meeting holds the lock until it has written the reason.
  const Lock lock(mutex_);
  if (left_ >= 0) throw left_error(caller, caller.member.member_name(left_));
  const bool is_culprit =
      std::find(missing_.begin(), missing_.end(), caller.member.rank()) != missing_.end();
  // All others are in the call whose deadline was missed.
  const bool is_late = is_open && !is_culprit;
  throw ended_error(is_late ? ErrorCode::deadline_exceeded : ErrorCode::aborted, caller, missed_)
      .at(is_culprit ? "" : caller.member.member_name(missing_.front()));
}

void Meeting::complete(int rank, std::uint64_t units) {
  if (units == 0) return;
  members_[static_cast<std::size_t>(rank)].num_completed.fetch_add(units,
                                                                   std::memory_order_seq_cst);
  gate_.notify();
}

bool Meeting::is_completed(std::uint64_t total) const {
  std::uint64_t completed = 0;
  for (int rank = 0; rank < size_; ++rank)
    completed +=
        members_[static_cast<std::size_t>(rank)].num_completed.load(std::memory_order_seq_cst);
  return completed >= total;
}

bool Meeting::wait_briefly(std::uint64_t total) {
  return spin(50, [&] { return is_completed(total); });
}

void Meeting::wait_for_completed(std::uint64_t total) {
  gate_.wait([&] { return is_completed(total); }, Deadline());
}

void Meeting::leave(int rank) {
  {
    const Lock lock(mutex_);
    if (has_ended_.load(std::memory_order_seq_cst)) return;
    left_ = rank;
    has_ended_.exchange(true, std::memory_order_seq_cst);
  }
  gate_.notify();
}

}  // namespace cohort::collective::in_process
