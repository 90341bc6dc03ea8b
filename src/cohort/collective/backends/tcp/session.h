// SPDX-License-Identifier: Apache-2.0
// The connections of one group, and how it ends.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cohort/collective/backends/tcp/channel.h"
#include "cohort/collective/groups/caller.h"
#include "cohort/collective/links.h"
#include "cohort/core/mutex.h"

namespace cohort::collective::tcp {

// Why a call waits for a member, the surest sign that it is late first: a member sends its values
// in any case, but results only when it has the values of others, for which it may wait itself.
enum class Awaited : std::uint8_t { nothing, beginning, values, results };

class Session;

// One member's sessions of a group and of its splits. A member that fails in one of these groups
// tells why in that group only, and takes no part in the calls of the others. Thread-safe.
class Siblings {
 public:
  void add(Session* session);
  void remove(Session* session) noexcept;
  // The farewell that a member that is asked has sent, in a group other than that of `mine`, about
  // the members because of which that group has ended. Leaves out groups in which another thread
  // makes a call.
  std::optional<Farewell> told_elsewhere(const Session& mine,
                                         const std::function<bool(int from)>& is_asked);

 private:
  Mutex mutex_;
  std::vector<Session*> sessions_ COHORT_GUARDED_BY(mutex_);
};

// Used only from the thread that makes the call, but for look_while_idle(), which is thread-safe.
class Session {
 public:
  Session(std::shared_ptr<Links> links, std::shared_ptr<Carrier> carrier, SplitPath path,
          std::shared_ptr<Siblings> siblings);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // Throws aborted if the group has ended. Connects the members in the first call.
  void begin(const Caller& caller, Deadline deadline);
  // The calls of others fail that this member has not finished.
  void leave() noexcept;
  bool has_ended() const { return has_ended_; }
  // Ends the group after run() with this farewell, unless another member has ended it from this
  // call on: then it throws that one's error. `follows`: another member must have said why.
  void fail(const Farewell& farewell, bool follows, const Caller& caller);
  // Throws if another member has ended the group from this call on.
  void check(const Caller& caller);
  // For Siblings: calls `found` with the farewell of each member that blames others, if no call is
  // in progress.
  void look_while_idle(const std::function<void(int from, const Farewell&)>& found);
  const std::shared_ptr<Siblings>& siblings() const { return siblings_; }
  // Called about every 50 ms while run() waits. If it throws, this member leaves.
  void set_watch(std::function<void()> watch) { watch_ = std::move(watch); }
  // Sends and receives until the transfer is complete and sent. If that fails, the group ends.
  void run(Transfer& transfer, const Caller& caller, Deadline deadline);

 private:
  void connect(const Caller& caller, Deadline deadline);
  void leave_now() noexcept;
  void look_for_farewells(const Caller& caller);
  bool move(Transfer& transfer, const Caller& caller);
  bool is_sent() const;
  void run_until_complete(Transfer& transfer, const Caller& caller, Deadline deadline);
  // Throws if a member that the call needs has closed its connection.
  void check_lost(const Transfer& transfer, const Caller& caller);
  [[noreturn]] void give_up(const Transfer& transfer, const Caller& caller);
  // Throws what a member that is asked has told in another group about why that has ended.
  void look_elsewhere(const Caller& caller, const std::function<bool(int from)>& is_asked);
  void look_at_watch();
  std::vector<int> late(const Transfer& transfer, Awaited reason) const;
  void apply(int from, const Farewell& farewell, const Caller& caller);
  [[noreturn]] void check_fault(const Channel& connection, const Caller& caller, int rank);
  // Ends the group because of a member that is lost, and throws. `what` this member has found out;
  // `expected`: the rest of the error.
  [[noreturn]] void lose(const Caller& caller, int rank, const std::string& what,
                         const std::string& expected);

  // Tells all others, and closes the connections.
  void end(const Farewell& farewell) noexcept;
  [[noreturn]] void refuse(const Caller& caller) const;

  const std::shared_ptr<Links> links_;
  const std::shared_ptr<Carrier> carrier_;
  const SplitPath path_;
  const std::shared_ptr<Siblings> siblings_;
  std::atomic<bool> is_in_use_ = false;
  Channels connections_;
  std::uint64_t num_calls_ = 0;            // that have begun
  std::optional<TimePoint> lost_at_ = {};  // when a needed connection was first found closed
  bool is_connected_ = false;
  bool has_ended_ = false;
  std::function<void()> watch_ = {};
  int left_ = -1;
  std::string reason_ = {};
  int culprit_ = -1;  // the first that reason_ names; -1: none
};

}  // namespace cohort::collective::tcp
