// SPDX-License-Identifier: Apache-2.0
#include "cohort/collective/formation/link_table.h"

#include <algorithm>
#include <utility>

#include "cohort/core/error.h"
#include "cohort/core/log.h"

namespace cohort::collective::formation {
namespace {

// Connections that wait here. More than a process opens at once, but not so many that strangers
// could use all file descriptors.
constexpr std::size_t kArrivedMax = 4096;

}  // namespace

std::string LinkTable::why_ended(std::uint64_t group) const {
  const std::string number = "group " + std::to_string(group);
  if (current_ > group) return number + " was replaced by group " + std::to_string(current_);
  return number + " has ended; form a new one";
}

void LinkTable::wake_all() {
  for (net::Waker* waker : wakers_) waker->wake();
}

std::optional<Reply> LinkTable::offer(const Request& request, FileDescriptor& socket) {
  const LinkHello& hello = request.link;
  const Lock lock(mutex_);
  if (hello.group <= ended_) {
    return Reply{.kind = ReplyKind::refused,
                 .code = ErrorCode::aborted,
                 .text = "[collective.open] expected the current group, got an old one: " +
                         why_ended(hello.group)};
  }
  if (arrived_.size() >= kArrivedMax) {
    return Reply{.kind = ReplyKind::refused,
                 .code = ErrorCode::resource_exhausted,
                 .text = "[collective.open] too many connections that this process does not open"};
  }
  arrived_[{hello.group, hello.path, hello.lane, request.from.self.task}] = {
      request.from.self.incarnation, hello.lanes, std::move(socket)};
  wake_all();
  return std::nullopt;
}

std::optional<ArrivedLink> LinkTable::take(const LinkHello& hello, int from) {
  const Lock lock(mutex_);
  const auto found = arrived_.find({hello.group, hello.path, hello.lane, from});
  if (found == arrived_.end()) return std::nullopt;
  ArrivedLink link = std::move(found->second);
  arrived_.erase(found);
  return link;
}

void LinkTable::begin(std::uint64_t group) {
  const Lock lock(mutex_);
  current_ = group;
  ended_ = group - 1;
  missed_.clear();
  is_given_up_ = false;
  forget_old();
}

void LinkTable::forget_old() {
  const std::uint64_t ended = ended_;
  std::erase_if(arrived_, [&](const auto& one) { return std::get<0>(one.first) <= ended; });
}

void LinkTable::end() {
  std::vector<net::OpenSocket> open;
  {
    const Lock lock(mutex_);
    ended_ = std::max(ended_, std::exchange(current_, 0));
    forget_old();
    open.swap(open_);
    wake_all();
  }
  for (const net::OpenSocket& socket : open) socket.shut_down();
}

void LinkTable::check_open(std::uint64_t group) {
  const Lock lock(mutex_);
  COHORT_CHECK(group == current_, ErrorCode::aborted,
               "[collective.open] expected the current group, got an old one: ", why_ended(group));
}

void LinkTable::add(std::uint64_t group, const FileDescriptor& socket) {
  const net::OpenSocket opened(socket.get());
  COHORT_CHECK(opened.is_open(), ErrorCode::internal,
               "[collective.open] expected an open connection");
  const Lock lock(mutex_);
  COHORT_CHECK(group == current_, ErrorCode::aborted,
               "[collective.open] expected the current group, got an old one: ", why_ended(group));
  sweep_open_(open_, [](const net::OpenSocket& one) { return !one.is_open(); });
  open_.push_back(opened);
}

void LinkTable::add_waker(net::Waker& waker) {
  const Lock lock(mutex_);
  wakers_.insert(&waker);
}

void LinkTable::remove_waker(net::Waker& waker) {
  const Lock lock(mutex_);
  wakers_.erase(&waker);
}

void LinkTable::miss(std::uint64_t group, Member member, const std::string& why) {
  const Lock lock(mutex_);
  if (group != current_) return;
  if (std::find(missed_.begin(), missed_.end(), member) != missed_.end()) return;
  log_info("[collective.group] member ", member.task, " of group ", group, " is missed: ", why);
  missed_.push_back(member);
}

void LinkTable::note_given_up(std::uint64_t group, const std::string& why) {
  const Lock lock(mutex_);
  if (group != current_ || std::exchange(is_given_up_, true)) return;
  log_info("[collective.group] the others go on without this process: ", why);
}

bool LinkTable::is_given_up() {
  const Lock lock(mutex_);
  return is_given_up_;
}

std::vector<Member> LinkTable::missed() {
  const Lock lock(mutex_);
  return missed_;
}

}  // namespace cohort::collective::formation
