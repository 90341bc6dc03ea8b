// SPDX-License-Identifier: Apache-2.0
#include "cohort/collective/backends/tcp/session.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <thread>
#include <utility>

namespace cohort::collective::tcp {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

// Waking a thread takes tens of microseconds, and members in step answer sooner. But if the member
// for which this one waits has to run on the same core, each spin is lost: on a busy machine spins
// of 100 us made small calls five times slower than these.
constexpr microseconds kSpin(20);
// How long a member that finds a connection closed waits for the farewell that tells why.
constexpr milliseconds kFarewellTime(100);
// How long one whose deadline passes waits for a member that knows better who is late.
constexpr milliseconds kGrace(500);

constexpr int kLanes = 2;

// Spinning keeps those members from running for which this one waits, if they share its cores.
Duration time_to_spin(const Links& links) {
  unsigned num_here = 0;
  for (int rank = 0; rank < links.size(); ++rank)
    num_here += links.host(rank) == links.host(links.rank()) ? 1 : 0;
  return num_here <= std::thread::hardware_concurrency() ? Duration(kSpin) : Duration(0);
}

// Between processes of one host nothing can be congested. But some systems choose BBR for all
// connections, which measures a rate and lets timers hold back what would exceed it: 1 MiB took
// twice as long in some connections as in others. Where it fails, calls are only slower.
void do_not_pace(const FileDescriptor& socket) {
  constexpr std::string_view kEverywhere = "reno";
  ::setsockopt(socket.get(), IPPROTO_TCP, TCP_CONGESTION, kEverywhere.data(), kEverywhere.size());
}

std::string prefix(const Caller& caller) {
  return "[collective." + std::string(name_of(caller.kind)) + "] expected ";
}

std::string in_call(const Caller& caller) {
  return std::string(caller.what) + " in call " + std::to_string(caller.call);
}

Error left_error(const Caller& caller, const std::string& name) {
  return Error(ErrorCode::aborted, prefix(caller) + name + " to take part in " + in_call(caller) +
                                       ", got the end of its group; all workers make the same "
                                       "calls")
      .at(name);
}

Error ended_error(ErrorCode code, const Caller& caller, const std::string& reason) {
  return Error(code, prefix(caller) + "to take part in " + in_call(caller) +
                         ", got the end of all workers' group: " + reason +
                         "; begin a new one on all");
}

}  // namespace

Session::Session(std::shared_ptr<Links> links, SplitPath path)
    : links_(std::move(links)),
      path_(std::move(path)),
      spin_(time_to_spin(*links_)),
      connections_(static_cast<std::size_t>(links_->size())) {}

Session::~Session() {
  if (is_connected_ && !has_ended_) end({.call = num_calls_});
}

void Session::begin(const Caller& caller, Deadline deadline) {
  if (has_ended_) refuse(caller);
  num_calls_ = caller.call;
  if (is_connected_) return;
  try {
    std::vector<FileDescriptor> sockets;
    if (links_->size() > 1) sockets = links_->open(path_, kLanes, deadline);
    for (int rank = 0; rank < links_->size(); ++rank) {
      const auto i = static_cast<std::size_t>(rank);
      if (rank == links_->rank()) continue;
      if (links_->host(rank) == links_->host(links_->rank())) do_not_pace(sockets[i * kLanes]);
      connections_[i] = std::make_unique<Connection>(
          links_->rank(), rank, std::move(sockets[i * kLanes]), std::move(sockets[i * kLanes + 1]));
    }
    is_connected_ = true;
  } catch (...) {
    Error error = current_error();
    has_ended_ = true;
    reason_ = "its members were not connected: " + error.message();
    for (int rank = 0; rank < links_->size(); ++rank) {
      if (error.code() != ErrorCode::aborted || error.origin() != links_->member_name(rank))
        continue;
      left_ = rank;
      throw left_error(caller, error.origin());
    }
    throw std::move(error).during(std::string(name_of(caller.kind)) + ", " + in_call(caller));
  }
}

void Session::run(AwaitedTraffic& traffic, const Caller& caller, Deadline deadline) {
  try {
    run_until_complete(traffic, caller, deadline);
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

void Session::run_until_complete(AwaitedTraffic& traffic, const Caller& caller, Deadline deadline) {
  TimePoint moved_at = {};
  bool has_grace = false;
  lost_at_.reset();
  while (true) {
    const bool has_moved = move(traffic, caller);
    if (traffic.must_decide()) {
      // One of them may have given up since it began the call.
      look_for_farewells(caller);
      traffic.decide();
      continue;
    }
    if (has_moved) {
      moved_at = {};
      continue;
    }
    if (traffic.is_complete() && is_sent()) return;
    check_lost(traffic, caller);
    const TimePoint now = Clock::system().now();
    if (moved_at == TimePoint()) moved_at = now;
    if (now >= deadline.time()) {
      look_for_farewells(caller);
      const bool is_sure =
          !late(traffic, Awaited::beginning).empty() || !late(traffic, Awaited::values).empty();
      if (is_sure || has_grace) give_up(traffic, caller);
      has_grace = true;
      deadline = Deadline(now + kGrace);
    }
    if (now - moved_at < spin_) continue;
    sleep(lost_at_ ? std::min(deadline.time(), *lost_at_ + kFarewellTime) : deadline.time());
    look_for_farewells(caller);
  }
}

bool Session::move(AwaitedTraffic& traffic, const Caller& caller) {
  bool has_moved = false;
  for (const auto& connection : connections_) {
    if (connection) has_moved = connection->send(traffic) || has_moved;
  }
  for (std::size_t i = 0; i < connections_.size(); ++i) {
    Connection* const connection = connections_[i].get();
    if (!connection) continue;
    has_moved = connection->receive(traffic) || has_moved;
    if (!connection->fault().empty()) check_fault(*connection, caller, static_cast<int>(i));
  }
  return has_moved;
}

bool Session::is_sent() const {
  return std::none_of(connections_.begin(), connections_.end(), [](const auto& connection) {
    return connection && connection->is_sending();
  });
}

void Session::sleep(TimePoint until) {
  c10::SmallVector<pollfd, 16> sockets;
  for (const auto& connection : connections_) {
    if (!connection) continue;
    // A socket whose events nobody wants is left out: it would report its end all the time.
    const int in = connection->is_holding() || connection->has_ended() ? 0 : POLLIN;
    const int events = in | (connection->is_sending() && !connection->has_ended() ? POLLOUT : 0);
    if (events != 0) sockets.push_back({connection->frames_fd(), static_cast<short>(events), 0});
    if (!connection->has_farewell_ended() && !connection->farewell())
      sockets.push_back({connection->farewell_fd(), POLLIN, 0});
  }
  int timeout = -1;
  if (until != TimePoint::max()) {
    const auto left = std::chrono::ceil<milliseconds>(until - Clock::system().now()).count();
    timeout = static_cast<int>(std::clamp<std::int64_t>(left, 0, 1 << 30));
  }
  ::poll(sockets.data(), sockets.size(), timeout);
}

void Session::check_lost(const AwaitedTraffic& traffic, const Caller& caller) {
  for (std::size_t i = 0; i < connections_.size(); ++i) {
    const Connection* const connection = connections_[i].get();
    if (!connection || !connection->has_ended()) continue;
    const int rank = static_cast<int>(i);
    if (traffic.awaited(rank) == Awaited::nothing && !connection->is_sending()) continue;
    look_for_farewells(caller);
    const TimePoint now = Clock::system().now();
    if (!lost_at_) lost_at_ = now;
    if (!connection->has_farewell_ended() && now < *lost_at_ + kFarewellTime) return;
    const std::string& name = links_->member_name(rank);
    reason_ = links_->member_name(links_->rank()) + " has lost the connection to " + name;
    end({.call = caller.call, .culprits = {rank}, .code = ErrorCode::unavailable, .why = reason_});
    links_->missed(rank, reason_);
    throw Error(ErrorCode::unavailable,
                prefix(caller) + name + " to take part in " + in_call(caller) +
                    ", got the end of its connection; start it again, and "
                    "begin a new group on all",
                ErrorCause::peer_lost)
        .at(name);
  }
}

std::vector<int> Session::late(const AwaitedTraffic& traffic, Awaited reason) const {
  std::vector<int> ranks;
  for (std::size_t i = 0; i < connections_.size(); ++i) {
    if (!connections_[i]) continue;
    const Awaited awaited = traffic.awaited(static_cast<int>(i));
    const bool is_unsent = reason == Awaited::results && connections_[i]->is_sending();
    if (awaited == reason || is_unsent) ranks.push_back(static_cast<int>(i));
  }
  return ranks;
}

void Session::give_up(const AwaitedTraffic& traffic, const Caller& caller) {
  std::vector<int> culprits;
  bool has_begun = false;
  for (const Awaited reason : {Awaited::beginning, Awaited::values, Awaited::results}) {
    culprits = late(traffic, reason);
    if (!culprits.empty()) break;
    has_begun = true;
  }
  const std::string names = names_of(culprits);
  reason_ = links_->member_name(links_->rank()) + " has waited in vain for " + names;
  end({.call = caller.call,
       .culprits = culprits,
       .code = ErrorCode::deadline_exceeded,
       .why = reason_});
  for (const int rank : culprits) links_->missed(rank, reason_);
  Error error(ErrorCode::deadline_exceeded,
              prefix(caller) + "all workers in call " + std::to_string(caller.call) +
                  " to take part in " + std::string(caller.what) + " in time, got " +
                  (has_begun ? "only a part from " : "nothing from ") + names);
  if (culprits.size() > 1) throw error;
  throw std::move(error).at(names);
}

void Session::check_fault(const Connection& connection, const Caller& caller, int rank) {
  const std::string& name = links_->member_name(rank);
  const std::string fault = connection.fault();
  reason_ = links_->member_name(links_->rank()) + " got " + fault + " from " + name;
  end({.call = caller.call, .culprits = {rank}, .code = ErrorCode::data_loss, .why = reason_});
  links_->missed(rank, reason_);
  throw Error(ErrorCode::data_loss, prefix(caller) + "what " + name + " sent in " +
                                        in_call(caller) + ", got " + fault +
                                        "; begin a new group on all")
      .at(name);
}

void Session::look_for_farewells(const Caller& caller) {
  for (std::size_t i = 0; i < connections_.size(); ++i) {
    Connection* const connection = connections_[i].get();
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
    if (rank != self) links_->missed(rank, farewell.why);
  }
  // The first call that learns of it gets the same error as the member that noticed it.
  Error error = ended_error(is_culprit ? ErrorCode::aborted : farewell.code, caller, reason_);
  if (farewell.culprits.size() != 1) throw error;
  throw std::move(error).at(links_->member_name(farewell.culprits.front()));
}

void Session::end(const Farewell& farewell) noexcept {
  has_ended_ = true;
  for (const auto& connection : connections_) {
    if (connection) connection->close_with(farewell);
  }
  connections_.clear();
}

void Session::refuse(const Caller& caller) const {
  if (left_ >= 0) throw left_error(caller, links_->member_name(left_));
  throw ended_error(ErrorCode::aborted, caller, reason_);
}

std::string Session::names_of(const std::vector<int>& ranks) const {
  std::string names;
  for (const int rank : ranks) names += (names.empty() ? "" : ", ") + links_->member_name(rank);
  return names;
}

}  // namespace cohort::collective::tcp
