// SPDX-License-Identifier: Apache-2.0
#include "cohort/collective/formation/process_links.h"

#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>

#include "cohort/collective/formation/lack.h"
#include "cohort/core/error.h"

namespace cohort::collective::formation {
namespace {

using State = Conversation::State;

// A process listens as long as it lives, so one that refuses connections has ended. The time is
// for connections that break for other reasons.
constexpr auto kDeadAfter = std::chrono::seconds(1);
// A member that has accepted a group may hear a little later that it is formed.
constexpr auto kNotInGroupAfter = std::chrono::seconds(3);
constexpr auto kRetryEvery = std::chrono::milliseconds(50);
// How often members that have not connected are asked whether they are alive.
constexpr auto kProbeEvery = std::chrono::milliseconds(250);

}  // namespace

ProcessLinks::ProcessLinks(const std::vector<WorkerTask>& tasks, Identity self, Proposal group,
                           std::shared_ptr<LinkTable> table)
    : self_(std::move(self)), number_(group.number), table_(std::move(table)) {
  for (ProposedMember& one : group.members) {
    if (one.who == self_.self) rank_ = static_cast<int>(members_.size());
    members_.push_back({one.who, tasks.at(static_cast<std::size_t>(one.who.task)),
                        std::move(one.host), one.process});
  }
}

void ProcessLinks::missed(int rank, std::string_view why) {
  if (rank == rank_) return table_->note_given_up(number_, std::string(why));
  table_->miss(number_, member(rank).who, std::string(why));
}

// One call of open(). This member connects to members of lower ranks, and those of higher ranks
// connect to it. Used only from the thread of that call.
class ProcessLinks::Opening {
 public:
  Opening(ProcessLinks& links, const SplitPath& path, int lanes)
      : links_(links),
        table_(*links.table_),
        path_(path),
        lanes_(lanes),
        sockets_(links.members_.size() * static_cast<std::size_t>(lanes)) {
    table_.add_waker(waker_);
    for (int rank = 0; rank < links.size(); ++rank) {
      if (rank == links.rank_) continue;
      const int count = rank < links.rank_ ? lanes : 1;
      for (int lane = 0; lane < count; ++lane)
        contacts_.emplace_back(rank, lane, links.member(rank).task.address);
    }
  }
  ~Opening() { table_.remove_waker(waker_); }
  Opening(const Opening&) = delete;
  Opening& operator=(const Opening&) = delete;

  std::vector<FileDescriptor> run(Deadline deadline) {
    while (true) {
      table_.check_open(links_.number_);
      waker_.drain();
      take_arrived();
      if (num_open_ == lanes_ * (links_.size() - 1)) return std::move(sockets_);
      if (deadline.has_expired()) fail_deadline();
      const TimePoint now = Clock::system().now();
      std::vector<Conversation*> asking;
      for (Contact& contact : contacts_) {
        if (is_done(contact)) continue;
        ask(contact, now);
        asking.push_back(&contact.conversation);
      }
      const Deadline step = Deadline::after(kRetryEvery);
      advance_all(asking, waker_.fd(), Deadline(std::min(step.time(), deadline.time())));
      for (Contact& contact : contacts_) {
        if (!is_done(contact)) hear(contact);
      }
    }
  }

 private:
  // A member of a lower rank, for one lane; or one of a higher rank, which is only asked whether it
  // is alive.
  struct Contact {
    Contact(int of, int in_lane, std::string address)
        : rank(of), lane(in_lane), conversation(std::move(address)) {}
    int rank;
    int lane;
    Conversation conversation;
    std::optional<TimePoint> lost_since = {};
    std::optional<TimePoint> elsewhere_since = {};
    bool is_heard = true;  // the last answer
    TimePoint created = Clock::system().now();
  };

  FileDescriptor& socket(int rank, int lane) {
    return sockets_[static_cast<std::size_t>(rank * lanes_ + lane)];
  }
  LinkHello hello(int lane) const { return {links_.number_, path_, lane, lanes_}; }
  bool is_lower(const Contact& contact) const { return contact.rank < links_.rank_; }
  bool is_done(const Contact& contact) {
    return is_lower(contact) ? socket(contact.rank, contact.lane).is_open()
                             : are_all_open(contact.rank);
  }
  bool are_all_open(int rank) {
    for (int lane = 0; lane < lanes_; ++lane) {
      if (!socket(rank, lane).is_open()) return false;
    }
    return true;
  }

  void keep(int rank, int lane, FileDescriptor opened) {
    table_.add(links_.number_, opened);
    socket(rank, lane) = std::move(opened);
    ++num_open_;
  }

  void take_arrived() {
    for (int rank = links_.rank_ + 1; rank < links_.size(); ++rank) {
      const LinkMember& member = links_.member(rank);
      for (int lane = 0; lane < lanes_; ++lane) {
        if (socket(rank, lane).is_open()) continue;
        std::optional<ArrivedLink> arrived = table_.take(hello(lane), member.who.task);
        if (!arrived || arrived->incarnation != member.who.incarnation) continue;
        accept(rank, lane, std::move(*arrived));
      }
    }
  }

  void accept(int rank, int lane, ArrivedLink arrived) {
    Reply reply{.kind = ReplyKind::linked};
    if (arrived.lanes != lanes_) {
      reply = {.kind = ReplyKind::refused,
               .code = ErrorCode::invalid_argument,
               .text = "[collective.open] expected " + std::to_string(lanes_) + " lanes as " +
                       links_.member(links_.rank_).task.name + " has, got " +
                       std::to_string(arrived.lanes) + " of " + links_.member_name(rank)};
    }
    reply.incarnation = links_.self_.self.incarnation;
    reply.number = links_.number_;
    const Bytes bytes = encode(reply);
    // A new connection has room for it. If it has broken, the other member connects again.
    const auto size = ::send(arrived.socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (reply.kind == ReplyKind::refused) throw Error(reply.code, reply.text);
    if (size == static_cast<ssize_t>(bytes.size())) keep(rank, lane, std::move(arrived.socket));
  }

  void ask(Contact& contact, TimePoint now) {
    Conversation& conversation = contact.conversation;
    if (conversation.state() == State::pending) {
      // The answer to a link comes when the other member opens its end.
      if (!is_lower(contact) && now - conversation.asked_at() > kDeadAfter)
        conversation.give_up("no answer");
      return;
    }
    const bool is_first = conversation.state() == State::idle;
    const Duration every = is_lower(contact) ? Duration(kRetryEvery) : Duration(kProbeEvery);
    if (is_first && !is_lower(contact) && now - contact.created < every) return;
    if (!is_first && now - conversation.asked_at() < every) return;
    Request request{.kind = is_lower(contact) ? RequestKind::link : RequestKind::probe,
                    .from = links_.self_,
                    .to = links_.member(contact.rank).who.task,
                    .link = hello(contact.lane)};
    conversation.ask(encode(request));
    contact.is_heard = false;
  }

  void hear(Contact& contact) {
    const State state = contact.conversation.advance();
    if (state == State::pending || state == State::idle || contact.is_heard) return;
    contact.is_heard = true;
    const TimePoint now = Clock::system().now();
    if (state == State::refused || (state == State::lost && is_lower(contact))) {
      if (!contact.lost_since) contact.lost_since = now;
      if (now - *contact.lost_since < kDeadAfter) return;
      fail_ended(contact, state == State::refused
                              ? "its process has ended"
                              : "connections to it break: " + contact.conversation.problem());
      return;
    }
    contact.lost_since.reset();
    if (state == State::answered) hear_reply(contact, now);
  }

  void hear_reply(Contact& contact, TimePoint now) {
    const Reply& reply = contact.conversation.reply();
    if (reply.kind == ReplyKind::refused)
      throw Error(reply.code, reply.text).at(links_.member_name(contact.rank));
    const std::uint64_t incarnation = links_.member(contact.rank).who.incarnation;
    if (reply.incarnation != incarnation) fail_ended(contact, "its process has started again");
    if (reply.kind == ReplyKind::linked) {
      keep(contact.rank, contact.lane, contact.conversation.take_socket());
      return;
    }
    const bool is_forming = reply.kind == ReplyKind::forming;
    COHORT_CHECK(reply.number <= links_.number_ && !(is_forming && reply.number == links_.number_),
                 ErrorCode::aborted, "[collective.open] expected group ", links_.number_,
                 " to go on, but ", links_.member_name(contact.rank),
                 " has left it to form a new group; form one, too");
    if (reply.number == links_.number_) return contact.elsewhere_since.reset();
    if (!contact.elsewhere_since) contact.elsewhere_since = now;
    if (now - *contact.elsewhere_since >= kNotInGroupAfter)
      fail_ended(contact, "it has not heard that the group was formed");
  }

  [[noreturn]] void fail_ended(const Contact& contact, const std::string& why) {
    links_.missed(contact.rank, why);
    const WorkerTask& task = links_.member(contact.rank).task;
    throw Error(ErrorCode::unavailable,
                "[collective.open] expected " + name_of(task) + " in group " +
                    std::to_string(links_.number_) + ", but " + why + "; form a new group",
                ErrorCause::peer_lost)
        .at(task.name);
  }

  [[noreturn]] void fail_deadline() {
    std::string missing, first;
    for (int rank = 0; rank < links_.size(); ++rank) {
      if (rank == links_.rank_ || are_all_open(rank)) continue;
      links_.missed(rank, "it has not connected in time");
      const WorkerTask& task = links_.member(rank).task;
      if (first.empty()) first = task.name;
      missing += (missing.empty() ? "" : ", ") + name_of(task);
    }
    throw Error(ErrorCode::deadline_exceeded,
                "[collective.open] expected connections of all members of group " +
                    std::to_string(links_.number_) + " before the deadline, got none of " + missing)
        .at(first);
  }

  ProcessLinks& links_;
  LinkTable& table_;
  const SplitPath path_;
  const int lanes_;
  net::Waker waker_;
  std::vector<FileDescriptor> sockets_;
  std::vector<Contact> contacts_;
  int num_open_ = 0;
};

std::vector<FileDescriptor> ProcessLinks::open(const SplitPath& path, int lanes,
                                               Deadline deadline) {
  COHORT_CHECK(lanes >= 1, ErrorCode::invalid_argument,
               "[collective.open] expected at least 1 lane, got ", lanes);
  return Opening(*this, path, lanes).run(deadline);
}

}  // namespace cohort::collective::formation
