// SPDX-License-Identifier: Apache-2.0
#include "cohort/collective/backends/tcp/session.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "cohort/collective/backends/tcp/transfer.h"

namespace cohort::collective::tcp {
namespace {

using std::chrono::milliseconds;

// How long a member that finds a connection closed waits for the farewell that tells why.
constexpr milliseconds kFarewellTime(100);
// How long one whose deadline passes waits for a member that knows better who is late.
constexpr milliseconds kGrace(500);

constexpr milliseconds kWatchInterval(50);

// While this exists, only its thread uses the session. Others use it for moments.
class Use {
 public:
  explicit Use(std::atomic<bool>& is_in_use) : is_in_use_(is_in_use) {
    while (is_in_use_.exchange(true, std::memory_order_acquire)) std::this_thread::yield();
  }
  ~Use() { is_in_use_.store(false, std::memory_order_release); }
  Use(const Use&) = delete;
  Use& operator=(const Use&) = delete;

 private:
  std::atomic<bool>& is_in_use_;
};

}  // namespace

void Siblings::add(Session* session) {
  const Lock lock(mutex_);
  sessions_.push_back(session);
}

void Siblings::remove(Session* session) noexcept {
  const Lock lock(mutex_);
  sessions_.erase(std::find(sessions_.begin(), sessions_.end(), session));
}

std::optional<Farewell> Siblings::told_elsewhere(const Session& mine,
                                                 const std::function<bool(int from)>& is_asked) {
  std::optional<Farewell> told;
  const Lock lock(mutex_);
  for (Session* const session : sessions_) {
    if (session == &mine) continue;
    session->look_while_idle([&](int from, const Farewell& farewell) {
      if (!told && is_asked(from)) told = farewell;
    });
  }
  return told;
}

Session::Session(std::shared_ptr<Links> links, std::shared_ptr<Carrier> carrier, SplitPath path,
                 std::shared_ptr<Siblings> siblings)
    : links_(std::move(links)),
      carrier_(std::move(carrier)),
      path_(std::move(path)),
      siblings_(std::move(siblings)) {
  siblings_->add(this);
}

Session::~Session() {
  siblings_->remove(this);
  if (is_connected_) {
    leave();
  } else if (!has_ended_) {
    carrier_->leave(path_);
  }
}

void Session::leave() noexcept {
  const Use use(is_in_use_);
  leave_now();
}

void Session::leave_now() noexcept {
  if (is_connected_ && !has_ended_) end({.call = num_calls_});
}

void Session::begin(const Caller& caller, Deadline deadline) {
  const Use use(is_in_use_);
  if (has_ended_) refuse(caller);
  num_calls_ = caller.call;
  if (!is_connected_) connect(caller, deadline);
}

void Session::connect(const Caller& caller, Deadline deadline) {
  try {
    connections_ = carrier_->connect(path_, deadline);
    is_connected_ = true;
  } catch (...) {
    Error error = current_error();
    has_ended_ = true;
    reason_ = "its members were not connected: " + error.message();
    // Members that wait in another group, or have left because it failed, do not come.
    const bool is_missing =
        error.code() == ErrorCode::deadline_exceeded || error.code() == ErrorCode::unavailable;
    if (is_missing) look_elsewhere(caller, [](int) { return true; });
    for (int rank = 0; rank < links_->size(); ++rank) {
      if (error.code() != ErrorCode::aborted || error.origin() != links_->member_name(rank))
        continue;
      left_ = rank;
      throw left_error(caller, error.origin());
    }
    throw std::move(error).during(std::string(name_of(caller.kind)) + ", " + in_call(caller));
  }
}

void Session::run(Transfer& transfer, const Caller& caller, Deadline deadline) {
  const Use use(is_in_use_);
  try {
    run_until_complete(transfer, caller, deadline);
  } catch (...) {
    if (!has_ended_) {
      // A failure of this member itself, for example a lack of memory.
      const Error error = current_error();
      const int self = links_->rank();
      reason_ = links_->member_name(self) + " has failed: " + error.message();
      end({.call = caller.call, .culprits = {self}, .code = error.code(), .why = reason_});
    }
    throw;
  }
  num_calls_ = caller.call + 1;
}

void Session::run_until_complete(Transfer& transfer, const Caller& caller, Deadline deadline) {
  TimePoint moved_at = {};
  bool has_grace = false;
  lost_at_.reset();
  while (true) {
    const bool has_moved = move(transfer, caller);
    if (transfer.must_decide()) {
      // One of them may have given up since it began the call.
      look_for_farewells(caller);
      transfer.decide();
      continue;
    }
    if (has_moved) {
      moved_at = {};
      continue;
    }
    if (transfer.is_complete() && is_sent()) return;
    check_lost(transfer, caller);
    const TimePoint now = Clock::system().now();
    if (moved_at == TimePoint()) moved_at = now;
    if (now >= deadline.time()) {
      look_for_farewells(caller);
      // If several members have not begun, some may wait for another one in the call before, whose
      // deadline passes at about this time; and if several owe values, some may be slow.
      const auto beginning = late(transfer, Awaited::beginning);
      const bool is_sure = beginning.size() == 1 ||
                           (beginning.empty() && late(transfer, Awaited::values).size() == 1);
      if (is_sure || has_grace) {
        look_elsewhere(caller,
                       [&](int from) { return transfer.awaited(from) != Awaited::nothing; });
        give_up(transfer, caller);
      }
      has_grace = true;
      deadline = Deadline(now + kGrace);
    }
    if (now - moved_at < carrier_->time_to_spin()) continue;
    TimePoint until = deadline.time();
    if (lost_at_) until = std::min(until, *lost_at_ + kFarewellTime);
    if (watch_) until = std::min(until, now + kWatchInterval);
    carrier_->sleep(connections_, moved_at, until);
    look_for_farewells(caller);
    look_at_watch();
  }
}

void Session::look_at_watch() {
  if (!watch_) return;
  try {
    watch_();
  } catch (...) {
    leave_now();
    throw;
  }
}

bool Session::move(Transfer& transfer, const Caller& caller) {
  bool has_moved = false;
  for (const auto& connection : connections_) {
    if (connection) has_moved = connection->send(transfer) || has_moved;
  }
  for (std::size_t i = 0; i < connections_.size(); ++i) {
    Channel* const connection = connections_[i].get();
    if (!connection) continue;
    has_moved = connection->receive(transfer) || has_moved;
    if (!connection->fault().empty()) check_fault(*connection, caller, static_cast<int>(i));
  }
  return has_moved;
}

bool Session::is_sent() const {
  return std::none_of(connections_.begin(), connections_.end(), [](const auto& connection) {
    return connection && connection->is_sending();
  });
}

void Session::fail(const Farewell& farewell, bool follows, const Caller& caller) {
  const Use use(is_in_use_);
  if (has_ended_) return;
  const TimePoint until = Clock::system().now() + (follows ? kGrace : milliseconds(0));
  while (true) {
    look_for_farewells(caller);
    if (Clock::system().now() >= until) break;
    carrier_->sleep_for_farewell(connections_, until);
  }
  reason_ = farewell.why;
  end(farewell);
}

void Session::check_lost(const Transfer& transfer, const Caller& caller) {
  for (std::size_t i = 0; i < connections_.size(); ++i) {
    const Channel* const connection = connections_[i].get();
    if (!connection || !connection->has_ended()) continue;
    const int rank = static_cast<int>(i);
    if (transfer.awaited(rank) == Awaited::nothing && !connection->is_sending()) continue;
    look_for_farewells(caller);
    const TimePoint now = Clock::system().now();
    if (!lost_at_) lost_at_ = now;
    if (!connection->has_farewell_ended() && now < *lost_at_ + kFarewellTime) return;
    look_elsewhere(caller, [&](int from) { return from == rank; });
    const std::string& name = links_->member_name(rank);
    lose(caller, rank, "has lost the connection to " + name,
         name + " to take part in " + in_call(caller) +
             ", got the end of its connection; start it again, and begin a new group on all");
  }
}

void Session::lose(const Caller& caller, int rank, const std::string& what,
                   const std::string& expected) {
  reason_ = links_->member_name(links_->rank()) + " " + what;
  end({.call = caller.call, .culprits = {rank}, .code = ErrorCode::unavailable, .why = reason_});
  links_->missed(rank, reason_);
  throw Error(ErrorCode::unavailable, prefix(caller.kind) + expected, ErrorCause::peer_lost)
      .at(links_->member_name(rank));
}

std::vector<int> Session::late(const Transfer& transfer, Awaited reason) const {
  std::vector<int> ranks;
  for (std::size_t i = 0; i < connections_.size(); ++i) {
    if (!connections_[i]) continue;
    const Awaited awaited = transfer.awaited(static_cast<int>(i));
    const bool is_unsent = reason == Awaited::results && connections_[i]->is_sending();
    if (awaited == reason || is_unsent) ranks.push_back(static_cast<int>(i));
  }
  return ranks;
}

void Session::give_up(const Transfer& transfer, const Caller& caller) {
  std::vector<int> culprits;
  bool has_begun = false;
  for (const Awaited reason : {Awaited::beginning, Awaited::values, Awaited::results}) {
    culprits = late(transfer, reason);
    if (!culprits.empty()) break;
    has_begun = true;
  }
  std::string names;
  for (const int rank : culprits) names += (names.empty() ? "" : ", ") + links_->member_name(rank);
  reason_ = links_->member_name(links_->rank()) + " has waited in vain for " + names;
  end({.call = caller.call,
       .culprits = culprits,
       .code = ErrorCode::deadline_exceeded,
       .why = reason_});
  for (const int rank : culprits) links_->missed(rank, reason_);
  Error error = late_error(caller, (has_begun ? "only a part from " : "nothing from ") + names);
  throw std::move(error).at(links_->member_name(culprits.front()));
}

void Session::look_elsewhere(const Caller& caller, const std::function<bool(int from)>& is_asked) {
  std::optional<Farewell> told = siblings_->told_elsewhere(*this, is_asked);
  if (!told) return;
  told->call = caller.call;
  apply(told->culprits.front(), *told, caller);
}

void Session::check_fault(const Channel& connection, const Caller& caller, int rank) {
  const std::string& name = links_->member_name(rank);
  const std::string fault = connection.fault();
  // As the loss of the connection: nobody knows what the other member has sent.
  lose(caller, rank, "got " + fault + " from " + name,
       "what " + name + " sent in " + in_call(caller) + ", got " + fault +
           "; begin a new group on all");
}

void Session::check(const Caller& caller) {
  const Use use(is_in_use_);
  look_for_farewells(caller);
}

void Session::look_while_idle(const std::function<void(int from, const Farewell&)>& found) {
  if (is_in_use_.exchange(true, std::memory_order_acquire)) return;
  for (std::size_t i = 0; i < connections_.size(); ++i) {
    Channel* const connection = connections_[i].get();
    if (!connection) continue;
    connection->look_for_farewell(links_->size());
    const std::optional<Farewell>& farewell = connection->farewell();
    const bool is_reason = farewell && farewell->code != ErrorCode::aborted;
    if (is_reason && !farewell->culprits.empty()) found(static_cast<int>(i), *farewell);
  }
  is_in_use_.store(false, std::memory_order_release);
}

void Session::look_for_farewells(const Caller& caller) {
  for (std::size_t i = 0; i < connections_.size(); ++i) {
    Channel* const connection = connections_[i].get();
    if (!connection) continue;
    connection->look_for_farewell(links_->size());
    if (!connection->fault().empty()) check_fault(*connection, caller, static_cast<int>(i));
    // One that concerns a later call comes from a member that has finished this one.
    if (connection->farewell() && connection->farewell()->call <= caller.call)
      apply(static_cast<int>(i), Farewell(*connection->farewell()), caller);
  }
}

void Session::apply(int from, const Farewell& farewell, const Caller& caller) {
  const int self = links_->rank();
  if (farewell.code == ErrorCode::aborted) {
    // One that has failed in another group leaves this one, too.
    look_elsewhere(caller, [&](int other) { return other == from; });
    left_ = farewell.culprits.empty() ? from : farewell.culprits.front();
    const std::string& name = links_->member_name(left_);
    end({.call = caller.call, .culprits = {left_}, .why = name + " has left"});
    throw left_error(caller, name);
  }
  reason_ = farewell.why;
  end(farewell);
  bool is_culprit = false;
  for (const int rank : farewell.culprits) {
    is_culprit = is_culprit || rank == self;
    links_->missed(rank, farewell.why);
  }
  // The first call that learns of it gets the same error as the member that noticed it.
  Error error = ended_error(is_culprit ? ErrorCode::aborted : farewell.code, caller, reason_);
  if (farewell.culprits.empty()) throw error;
  throw std::move(error).at(links_->member_name(farewell.culprits.front()));
}

void Session::end(const Farewell& farewell) noexcept {
  has_ended_ = true;
  culprit_ = farewell.culprits.empty() ? -1 : farewell.culprits.front();
  for (const auto& connection : connections_) {
    if (connection) connection->close_with(farewell);
  }
  connections_.clear();
}

void Session::refuse(const Caller& caller) const {
  if (left_ >= 0) throw left_error(caller, links_->member_name(left_));
  Error error = ended_error(ErrorCode::aborted, caller, reason_);
  if (culprit_ < 0) throw error;
  throw std::move(error).at(links_->member_name(culprit_));
}

}  // namespace cohort::collective::tcp
