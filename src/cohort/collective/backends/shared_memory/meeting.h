// SPDX-License-Identifier: Apache-2.0
// Where the members of a group that are processes of one host meet, wait for each other, and learn
// that the group has ended.
//
// A call is as in backends/in_process/meeting.h: each member fills its turn and begins the call,
// and compares the turns of all when all have begun. Larger values then follow in slices
// (stream.h). Two turns for each member are enough: who fills the turn of call n + 2 has met the
// others in call n + 1, so all of them have left call n.
//
// A member can give up while others have not begun the call. It withdraws its turn first, and then
// looks who is missing. If one is, no member can ever see that all have begun: who sees that one
// begin looks at all turns once more after that, and finds this one withdrawn. If all have begun or
// withdrawn, it takes the withdrawal back. So all members decide alike about a call, although no
// lock is held, which a killed process would keep.
//
// The group ends by one word, RoomState::ended, that the first of all members sets who has a
// reason. It names the first call that fails, so the others finish calls before that one. A member
// that was stopped and goes on after that changes nothing for the others, who have left.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "cohort/collective/backends/shared_memory/memory.h"
#include "cohort/collective/backends/shared_memory/room.h"
#include "cohort/collective/groups/caller.h"
#include "cohort/core/spin.h"

namespace cohort::collective::shared_memory {

// A member waits until others have come so far.
enum class Progress : std::uint8_t { begun, filled, reduced, consumed };

// One member's view. Used only from the thread that calls the member.
class Meeting {
 public:
  // `watch`, which may be empty, is called now and then while the member sleeps; it lives as long
  // as this object.
  Meeting(std::shared_ptr<Memory> memory, JoinedRoom joined, const std::function<void()>& watch);
  // Calls of others that need this member fail.
  ~Meeting();
  Meeting(const Meeting&) = delete;
  Meeting& operator=(const Meeting&) = delete;

  const Room& room() const { return joined_.room; }
  int size() const { return size_; }
  // The number of the current meeting.
  std::uint64_t sequence() const { return sequence_; }

  // Throws if the group has ended; else the turn of the next call may be filled.
  void check_open(const Caller& caller);
  // Begins the call and waits until all members have begun it. After a failure the group has ended.
  void meet(const Caller& caller);
  // The call is over for this member.
  void advance() { sequence_ += 1; }
  // Tells the others how far this member has come.
  void publish(Progress progress, std::uint64_t count);
  // Waits until all others have come so far.
  void wait_for_all(Progress progress, std::uint64_t count, const Caller& caller);
  // Notes in Links::missed() whom the others have missed, if the group has ended.
  void look_for_end();
  // This member cannot continue the call.
  void fail() noexcept;

 private:
  bool has_come(int rank, Progress progress, std::uint64_t count) const;
  std::atomic<std::uint64_t>& counter(int rank, Progress progress, std::uint64_t count) const;
  // Returns whether it has come before the deadline.
  bool wait_for(int rank, Progress progress, std::uint64_t count, const Caller& caller,
                Deadline deadline);
  bool sleep_for(int rank, Progress progress, std::uint64_t count, const Caller& caller,
                 Deadline deadline);
  void wake(int rank, std::uint32_t value) noexcept;
  bool have_all_begun() const;
  // Withdraws the turn. Throws if the group ends; else all others are there.
  void give_up(const Caller& caller);

  // Whether this call and later ones fail.
  bool has_ended() const;
  // Ends the group from the current call on, because of `culprits`.
  void end(Ending ending, const std::vector<int>& culprits) noexcept;
  // Ends the group if a member has gone.
  void look_for_the_gone(const Caller& caller);
  [[noreturn]] void end_and_throw(Ending ending, const std::vector<int>& culprits,
                                  const Caller& caller);
  // Throws what ended the group.
  [[noreturn]] void refuse(const Caller& caller);
  [[noreturn]] void throw_ending(int by, const Caller& caller);
  // The members because of which the member `by` has ended the group.
  std::vector<int> note_culprits(int by);

  const std::shared_ptr<Memory> memory_;  // shared with the members of the other groups
  JoinedRoom joined_;
  const std::function<void()>& watch_;
  const int rank_;
  const int size_;
  BriefWait brief_wait_;
  std::uint64_t sequence_ = 0;
  bool has_thrown_ = false;  // why the group has ended
};

}  // namespace cohort::collective::shared_memory
