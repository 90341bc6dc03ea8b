// SPDX-License-Identifier: Apache-2.0
// The connections of this process to the members of its group.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "cohort/collective/formation/message.h"
#include "cohort/core/amortized_sweep.h"
#include "cohort/core/file_descriptor.h"
#include "cohort/core/mutex.h"
#include "cohort/net/open_socket.h"
#include "cohort/net/waker.h"

namespace cohort::collective::formation {

// A connection that another member has opened and this one has not yet.
struct ArrivedLink {
  std::uint64_t incarnation = 0;
  int lanes = 0;
  FileDescriptor socket = {};
};

// The connections that wait for this process to open them, and the open ones. Thread-safe.
class LinkTable {
 public:
  // Keeps the connection that a request brings, and returns nullopt, or says why it is refused.
  std::optional<Reply> offer(const Request& request, FileDescriptor& socket);
  std::optional<ArrivedLink> take(const LinkHello& hello, int from);

  void begin(std::uint64_t group);
  // Ends the group: its connections break, here and at their other ends.
  void end();
  // Throws aborted if this is not the current group.
  void check_open(std::uint64_t group);
  // Breaks this connection when the group ends, if it is open then. Throws aborted if the group has
  // ended.
  void add(std::uint64_t group, const FileDescriptor& socket);

  // Wakes it for each arrival and end, until it is removed.
  void add_waker(net::Waker& waker);
  void remove_waker(net::Waker& waker);

  // Members of the last group that did not answer, until the next group begins.
  void miss(std::uint64_t group, Member member, const std::string& why);
  std::vector<Member> missed();
  // Members of the last group have told this process that they go on without it. Until the next
  // group begins.
  void note_given_up(std::uint64_t group, const std::string& why);
  bool is_given_up();

 private:
  using Key = std::tuple<std::uint64_t, SplitPath, int, int>;  // group, path, lane, task

  std::string why_ended(std::uint64_t group) const COHORT_REQUIRES(mutex_);
  void wake_all() COHORT_REQUIRES(mutex_);
  // Closes what arrived for groups that have ended.
  void forget_old() COHORT_REQUIRES(mutex_);

  Mutex mutex_;
  std::uint64_t current_ COHORT_GUARDED_BY(mutex_) = 0;  // 0: none
  std::uint64_t ended_ COHORT_GUARDED_BY(mutex_) = 0;    // this group and all before it
  std::map<Key, ArrivedLink> arrived_ COHORT_GUARDED_BY(mutex_);
  std::vector<net::OpenSocket> open_ COHORT_GUARDED_BY(mutex_);
  internal::AmortizedSweep sweep_open_ COHORT_GUARDED_BY(mutex_);
  std::set<net::Waker*> wakers_ COHORT_GUARDED_BY(mutex_);
  std::vector<Member> missed_ COHORT_GUARDED_BY(mutex_);
  bool is_given_up_ COHORT_GUARDED_BY(mutex_) = false;
};

}  // namespace cohort::collective::formation
