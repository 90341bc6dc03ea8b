// SPDX-License-Identifier: Apache-2.0
// Where the members of a group that are threads of one process meet: they publish the memory of a
// call to each other, and wait for each other.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cohort/collective/backends/in_process/gate.h"
#include "cohort/collective/group.h"
#include "cohort/collective/groups/call.h"
#include "cohort/collective/groups/caller.h"
#include "cohort/core/mutex.h"

namespace cohort::collective::in_process {

// Up to this size each member copies its values to its turn and reads those of all others there.
// It costs more copies, but the members wait for each other only once.
inline constexpr std::int64_t kPayloadBytesMax = 128;

// A member's description of a call for the others. `call`, `parts` and `data` refer to the member's
// stack and tensors: another member uses them only before it has completed its units of the call
// (Meeting::complete).
struct Offer {
  std::uint64_t fingerprint = 0;
  const Call* call = nullptr;
  const Part* parts = nullptr;
  std::byte* data = nullptr;  // of the first part
  std::int64_t length = 0;    // of all_gather: the size along the axis
  bool is_refused = false;
  bool has_payload = false;  // the values are in Turn::payload
};

// One call of a member. All that others read of most calls is in the first cache line.
struct alignas(64) Turn {
  // The number of the call + 1 since the member has begun it; the other members read the rest of
  // the turn only then.
  std::atomic<std::uint64_t> begun = 0;
  Offer offer = {};

  // The first chunk of the member's share that nobody has begun.
  alignas(64) std::atomic<std::int64_t> next_chunk = 0;
  Bytes bytes = {};  // of exchange()
  alignas(64) std::byte payload[kPayloadBytesMax];
};

// The protocol of a call, in which each member
//   1. fills its turn, begins the call, and waits until all members have begun it;
//   2. compares the turns: all members see the same ones, so all know whether they agree;
//   3. works, possibly on the tensors of others, in units whose number all of them know;
//   4. completes the units that it did, and waits until all units of the call are completed. After
//      that nobody accesses its tensors or its Call, so it returns. If the call uses no memory but
//      the turns, there are no units, and step 4 is left out.
//
// A member can give up only in step 1, and returns then, so nobody may use its turn. It withdraws
// the turn, and then looks whether all others have begun the call. If one has not, no member can
// ever see that all have begun: who sees that one begin looks at all turns once more after that
// (has_begun), and finds this one withdrawn. If all have begun, some may already work on its
// tensors: it takes the withdrawal back and takes part. All of this is in the single order of
// memory_order_seq_cst.
//
// Steps 2 to 4 have no deadline: they run no code of users, all members are there, and one whose
// thread does not run is hardly waited for, since others take over its chunks (Turn::next_chunk).
//
// Two turns for each member are enough: who fills the turn of call n + 2 has met the others in call
// n + 1, so all of them have left call n.
//
// Thread-safe.
class Meeting {
 public:
  explicit Meeting(int size);

  int size() const { return size_; }
  Turn& turn(int rank, std::uint64_t call) {
    return members_[static_cast<std::size_t>(rank)].turns[call % 2];
  }
  // Throws aborted if the meeting has ended; else the caller's turn may be filled.
  void check_open(const Caller& caller);
  // Begins the call and waits until all members have begun it. Throws deadline_exceeded if others
  // have not, by the deadline of any member, or aborted; then nobody uses the caller's turn.
  void meet(const Caller& caller, const Offer& offer, Deadline deadline);
  // Adds to the number of units that `rank` has completed.
  void complete(int rank, std::uint64_t units);
  // Waits until all members together have completed `total` units since the beginning; either for
  // less than a microsecond or as long as it takes. Returns whether they have.
  bool wait_briefly(std::uint64_t total);
  void wait_for_completed(std::uint64_t total);
  // The member makes no more calls. Calls that all members have begun go on.
  void leave(int rank);

 private:
  struct Member {
    Turn turns[2];
    alignas(64) std::atomic<std::uint64_t> num_completed = 0;
  };

  bool has_begun(int rank, std::uint64_t call);
  bool have_all_begun(std::uint64_t call);
  bool is_completed(std::uint64_t total) const;
  // Withdraws the turn; returns the names of the members that have not begun the call. If there are
  // none, or the meeting has ended, the turn is as before.
  std::string give_up(const Caller& caller);
  // `is_open`: the caller waits in the call.
  [[noreturn]] void refuse(const Caller& caller, bool is_open);

  const int size_;
  const std::unique_ptr<Member[]> members_;
  Gate gate_;
  std::atomic<bool> has_ended_ = false;
  Mutex mutex_;
  // Why it has ended: a member that has left, or a missed deadline, who waited for whom.
  int left_ COHORT_GUARDED_BY(mutex_) = -1;
  std::string missed_ COHORT_GUARDED_BY(mutex_);
  std::vector<int> missing_ COHORT_GUARDED_BY(mutex_);
};

}  // namespace cohort::collective::in_process
