// SPDX-License-Identifier: Apache-2.0
#include "cohort/collective/backends/shared_memory/meeting.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <ctime>

#include "cohort/core/error.h"

namespace cohort::collective::shared_memory {
namespace {

// A member looks so often whether the processes of the others have ended.
constexpr std::chrono::milliseconds kLookInterval{50};
// How long members wait beyond the deadline of a call that all have begun, or for others that give
// up at the same time.
constexpr std::chrono::seconds kGraceTime{1};

// Sleeps until another process wakes this word, unless it has another value. Returns whether the
// time was over.
bool sleep_on(std::atomic<std::uint32_t>& word, std::uint32_t value, Duration time) {
  const auto seconds = std::chrono::floor<std::chrono::seconds>(time);
  const timespec limit{.tv_sec = static_cast<std::time_t>(seconds.count()),
                       .tv_nsec = static_cast<long>((time - seconds).count())};
  return ::syscall(SYS_futex, &word, FUTEX_WAIT, value, &limit, nullptr, 0) != 0 &&
         errno == ETIMEDOUT;
}

// The error of a call that fails because of the members `names`, as the member `by` found out.
// `is_first`: it is the first call to learn that others have missed a deadline. `is_late`: its own
// deadline, too.
Error error_of(Ending ending, bool is_first, bool is_late, const Caller& caller,
               const std::string& names, const std::string& by) {
  const std::string start = prefix(caller.kind);
  const std::string part = " to take part in " + std::string(caller.what);
  const std::string call = " call " + std::to_string(caller.call);
  const std::string remedy = "; begin a new group on all workers";
  switch (ending) {
    case Ending::missed:
      if (is_late)
        return {ErrorCode::deadline_exceeded, start + "all workers in" + call + part +
                                                  " in time, got nothing from " + names + remedy};
      return {is_first ? ErrorCode::deadline_exceeded : ErrorCode::aborted,
              start + "all workers" + part + " in" + call + ", got the end of their group: " + by +
                  " has waited in vain for " + names + remedy};
    case Ending::died:
      return {ErrorCode::unavailable,
              start + names + part + " in" + call +
                  ", got the end of its process, or of its part in the group" + remedy,
              ErrorCause::peer_lost};
    case Ending::failed:
      return {ErrorCode::aborted, start + names + part + " in" + call +
                                      ", got its failure in the middle of a call; see its error" +
                                      remedy};
    default:
      return {ErrorCode::aborted, start + names + part + " in" + call +
                                      ", got the end of its group; all workers make the same "
                                      "calls"};
  }
}

}  // namespace

Meeting::Meeting(std::shared_ptr<Memory> memory, JoinedRoom joined,
                 const std::function<void()>& watch)
    : memory_(std::move(memory)),
      joined_(std::move(joined)),
      watch_(watch),
      rank_(memory_->links().rank()),
      size_(memory_->links().size()),
      brief_wait_(size_) {}

Meeting::~Meeting() {
  end(Ending::left, {rank_});
  memory_->leave(std::move(joined_));
}

std::atomic<std::uint64_t>& Meeting::counter(int rank, Progress progress,
                                             std::uint64_t count) const {
  switch (progress) {
    case Progress::begun:
      return room().turn(rank, count - 1).begun;
    case Progress::filled:
      return room().member(rank).filled;
    case Progress::reduced:
      return room().member(rank).reduced;
    case Progress::consumed:
      return room().member(rank).consumed;
  }
  return room().member(rank).consumed;
}

bool Meeting::has_come(int rank, Progress progress, std::uint64_t count) const {
  const std::uint64_t now = counter(rank, progress, count).load(std::memory_order_seq_cst);
  return progress == Progress::begun ? now == count : now >= count;
}

void Meeting::publish(Progress progress, std::uint64_t count) {
  counter(rank_, progress, count).store(count, std::memory_order_seq_cst);
  // Either this member sees that another sleeps, or that one sees the progress when it looks once
  // more before it sleeps: all of it is in the single order of memory_order_seq_cst.
  const auto mine = static_cast<std::uint32_t>(rank_) + 1;
  for (int rank = 0; rank < size_; ++rank) wake(rank, mine);
}

void Meeting::wake(int rank, std::uint32_t value) noexcept {
  std::atomic<std::uint32_t>& word = room().sleeps_for(rank);
  if (word.load(std::memory_order_seq_cst) != value) return;
  if (word.compare_exchange_strong(value, 0, std::memory_order_seq_cst))
    ::syscall(SYS_futex, &word, FUTEX_WAKE, 1, nullptr, nullptr, 0);
}

bool Meeting::wait_for(int rank, Progress progress, std::uint64_t count, const Caller& caller,
                       Deadline deadline) {
  return brief_wait_.wait([&] { return has_come(rank, progress, count); }) ||
         sleep_for(rank, progress, count, caller, deadline);
}

bool Meeting::sleep_for(int rank, Progress progress, std::uint64_t count, const Caller& caller,
                        Deadline deadline) {
  std::atomic<std::uint32_t>& word = room().sleeps_for(rank_);
  const auto value = static_cast<std::uint32_t>(rank) + 1;
  while (true) {
    word.store(value, std::memory_order_seq_cst);
    const bool is_over = has_ended();  // before the progress, which may have come before the end
    const bool is_here = has_come(rank, progress, count);
    const bool is_late = deadline.has_expired();
    bool is_quiet = false;
    if (!is_here && !is_over && !is_late)
      is_quiet = sleep_on(word, value, std::min<Duration>(deadline.remaining(), kLookInterval));
    word.store(0, std::memory_order_seq_cst);
    if (is_here) return true;
    if (is_over) refuse(caller);
    if (is_late) return false;
    if (!is_quiet || has_come(rank, progress, count)) continue;
    look_for_the_gone(caller);
    if (watch_) watch_();
  }
}

void Meeting::wait_for_all(Progress progress, std::uint64_t count, const Caller& caller) {
  for (int i = 1; i < size_; ++i) {
    const int rank = (rank_ + i) % size_;
    if (has_come(rank, progress, count)) continue;
    // The deadline is for the beginning of a call, so it may pass while all of them work.
    const Deadline deadline(std::max(caller.deadline.time(), Clock::system().now() + kGraceTime));
    if (wait_for(rank, progress, count, caller, deadline)) continue;
    std::vector<int> missing;
    for (int other = 0; other < size_; ++other) {
      if (other != rank_ && !has_come(other, progress, count)) missing.push_back(other);
    }
    if (!missing.empty()) end_and_throw(Ending::missed, missing, caller);
  }
}

bool Meeting::have_all_begun() const {
  for (int rank = 0; rank < size_; ++rank) {
    if (!has_come(rank, Progress::begun, sequence_ + 1)) return false;
  }
  return true;
}

void Meeting::check_open(const Caller& caller) {
  if (has_ended()) refuse(caller);
}

void Meeting::meet(const Caller& caller) {
  const std::uint64_t mine = sequence_ + 1;
  publish(Progress::begun, mine);
  Deadline deadline = caller.deadline;
  bool has_given_up = false;
  // Again, since one of the first may have withdrawn its turn while this one waited for the last.
  // In a group of two, each member has begun the call itself before it looked at the other.
  do {
    for (int i = 1; i < size_; ++i) {
      const int rank = (rank_ + i) % size_;
      while (!has_come(rank, Progress::begun, mine) &&
             !wait_for(rank, Progress::begun, mine, caller, deadline)) {
        // Others who gave up, too, have not gone on in time.
        if (has_given_up) end_and_throw(Ending::missed, {rank}, caller);
        give_up(caller);
        has_given_up = true;
        deadline = Deadline::after(kGraceTime);
      }
    }
  } while (size_ > 2 && !have_all_begun());
}

void Meeting::give_up(const Caller& caller) {
  const std::uint64_t mine = sequence_ + 1;
  room().turn(rank_, sequence_).begun.store(mine | kWithdrawn, std::memory_order_seq_cst);
  if (has_ended()) refuse(caller);
  std::vector<int> missing;
  for (int rank = 0; rank < size_; ++rank) {
    const std::uint64_t begun =
        room().turn(rank, sequence_).begun.load(std::memory_order_seq_cst) & ~kWithdrawn;
    if (begun != mine) missing.push_back(rank);
  }
  if (!missing.empty()) end_and_throw(Ending::missed, missing, caller);
  publish(Progress::begun, mine);
}

bool Meeting::has_ended() const {
  const std::uint64_t ended = room().ended().load(std::memory_order_seq_cst);
  return ended != 0 && (ended >> 16U) <= sequence_ + 1;
}

void Meeting::end(Ending ending, const std::vector<int>& culprits) noexcept {
  std::atomic<Ending>& mine = room().member(rank_).ending;
  std::uint64_t open = 0;
  if (room().ended().load(std::memory_order_seq_cst) != 0) return;
  for (const int rank : culprits) room().blames(rank_, rank).store(1, std::memory_order_seq_cst);
  mine.store(ending, std::memory_order_seq_cst);
  const std::uint64_t word = (sequence_ + 1) << 16U | static_cast<std::uint64_t>(rank_);
  if (!room().ended().compare_exchange_strong(open, word, std::memory_order_seq_cst)) return;
  for (int rank = 0; rank < size_; ++rank) {
    const std::uint32_t value = room().sleeps_for(rank).load(std::memory_order_seq_cst);
    if (value != 0) wake(rank, value);
  }
}

void Meeting::fail() noexcept { end(Ending::failed, {rank_}); }

void Meeting::look_for_the_gone(const Caller& caller) {
  std::vector<int> dead;
  for (int rank = 0; rank < size_; ++rank) {
    if (rank == rank_) continue;
    const bool is_cut = memory_->is_cut(rank);
    if (memory_->has_left(rank)) {
      // If it had joined this group, it would have ended it; perhaps from a later call on.
      if (room().ended().load(std::memory_order_seq_cst) == 0)
        end_and_throw(Ending::left, {rank}, caller);
    } else if (is_cut) {
      dead.push_back(rank);
    }
  }
  if (!dead.empty()) end_and_throw(Ending::died, dead, caller);
}

void Meeting::end_and_throw(Ending ending, const std::vector<int>& culprits, const Caller& caller) {
  end(ending, culprits);
  if (has_ended()) refuse(caller);
  // The group has ended from a later call on, but this one cannot be finished either.
  room().member(rank_).ending.store(ending, std::memory_order_seq_cst);
  for (int rank = 0; rank < size_; ++rank)
    room().blames(rank_, rank).store(0, std::memory_order_seq_cst);
  for (const int rank : culprits) room().blames(rank_, rank).store(1, std::memory_order_seq_cst);
  throw_ending(rank_, caller);
}

void Meeting::refuse(const Caller& caller) {
  const std::uint64_t ended = room().ended().load(std::memory_order_seq_cst);
  throw_ending(std::min(static_cast<int>(ended & 0xffffU), size_ - 1), caller);
}

std::vector<int> Meeting::note_culprits(int by) {
  const Ending ending = room().member(by).ending.load(std::memory_order_seq_cst);
  const bool is_dead = ending == Ending::died;
  std::vector<int> culprits;
  for (int rank = 0; rank < size_; ++rank) {
    if (room().blames(by, rank).load(std::memory_order_seq_cst) == 0) continue;
    culprits.push_back(rank);
    if (is_dead || ending == Ending::missed)
      memory_->links().missed(rank, is_dead ? "its process has ended" : "it was late for a call");
  }
  return culprits;
}

void Meeting::look_for_end() {
  const std::uint64_t ended = room().ended().load(std::memory_order_seq_cst);
  const auto by = static_cast<int>(ended & 0xffffU);
  if (ended != 0 && by != rank_ && by < size_) note_culprits(by);
}

void Meeting::throw_ending(int by, const Caller& caller) {
  const Links& links = memory_->links();
  const Ending ending = room().member(by).ending.load(std::memory_order_seq_cst);
  std::string names;
  std::string origin;
  bool is_culprit = false;
  for (const int rank : note_culprits(by)) {
    const std::string& name = links.member_name(rank);
    if (origin.empty()) origin = name;
    names += (names.empty() ? "" : ", ") + name;
    is_culprit = is_culprit || rank == rank_;
  }
  // The first call that learns of a missed deadline gets the same code as the one that found out.
  const bool is_first = !is_culprit && !std::exchange(has_thrown_, true);
  // It may be a later one, since the member has finished that in which the deadline was missed.
  const bool is_this_call = room().ended().load(std::memory_order_seq_cst) >> 16U > sequence_;
  const bool is_late = is_first && is_this_call && caller.deadline.has_expired();
  throw error_of(ending, is_first, is_late, caller, names, links.member_name(by))
      .at(is_culprit ? "" : origin);
}

}  // namespace cohort::collective::shared_memory
