// SPDX-License-Identifier: Apache-2.0
// Links between forked processes, over TCP on this machine; for tests and benchmarks of backends.
//
//   ForkedSockets sockets(2);
//   if (::fork() == 0) { ForkedLinks links(sockets, 1); … }
#pragma once

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cohort/core/clock.h"
#include "cohort/core/error.h"
#include "cohort/core/file_descriptor.h"
#include "cohort/core/mutex.h"
#include "cohort/testing/paired_links.h"

namespace cohort::testing {

// Made before the processes are forked: a pair of sockets between each two of them, through which
// they send the ends of connections. Thread-compatible.
class ForkedSockets {
 public:
  explicit ForkedSockets(int size) : size_(size), ends_(static_cast<std::size_t>(size * size)) {
    for (int a = 0; a < size; ++a) {
      for (int b = a + 1; b < size; ++b) {
        int pair[2] = {-1, -1};
        COHORT_CHECK(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) == 0,
                     ErrorCode::internal, "[testing.forked_links] no pair of sockets");
        ends_[static_cast<std::size_t>(a * size + b)] = FileDescriptor(pair[0]);
        ends_[static_cast<std::size_t>(b * size + a)] = FileDescriptor(pair[1]);
      }
    }
  }
  int size() const { return size_; }
  // The ends of one process, which closes all others.
  std::vector<FileDescriptor> of(int rank) {
    std::vector<FileDescriptor> mine;
    for (int other = 0; other < size_; ++other)
      mine.push_back(std::move(ends_[static_cast<std::size_t>(rank * size_ + other)]));
    ends_.clear();
    return mine;
  }

 private:
  int size_;
  std::vector<FileDescriptor> ends_;
};

// One process's. `hosts`: the name of each member's host; empty: all are on one. Thread-safe.
class ForkedLinks final : public collective::Links {
 public:
  ForkedLinks(ForkedSockets& sockets, int rank, std::vector<std::string> hosts = {})
      : rank_(rank), hosts_(std::move(hosts)), ends_(sockets.of(rank)) {
    hosts_.resize(ends_.size(), "here");
    processes_.resize(ends_.size(), ::getpid());
    for (std::size_t i = 0; i < ends_.size(); ++i) names_.push_back("worker:" + std::to_string(i));
    for (const FileDescriptor& end : ends_) {
      const pid_t mine = ::getpid();
      if (end.is_open()) (void)::send(end.get(), &mine, sizeof(mine), MSG_NOSIGNAL);
    }
    for (std::size_t i = 0; i < ends_.size(); ++i) {
      if (ends_[i].is_open()) (void)::recv(ends_[i].get(), &processes_[i], sizeof(pid_t), 0);
    }
  }
  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(ends_.size()); }
  const std::string& member_name(int rank) const override {
    return names_[static_cast<std::size_t>(rank)];
  }
  const std::string& host(int rank) const override {
    return hosts_[static_cast<std::size_t>(rank)];
  }
  std::int64_t process(int rank) const override {
    return processes_[static_cast<std::size_t>(rank)];
  }

  std::vector<FileDescriptor> open(const collective::SplitPath& path, int lanes,
                                   Deadline deadline) override {
    const auto count = static_cast<std::size_t>(size() * lanes);
    std::vector<FileDescriptor> opened(count);
    for (int other = 0; other < size(); ++other) {
      if (other == rank_) continue;
      for (int lane = 0; lane < lanes; ++lane) {
        std::vector<std::uint64_t> key(path);
        key.push_back(static_cast<std::uint64_t>(lane));
        FileDescriptor& end = opened[static_cast<std::size_t>(other * lanes + lane)];
        end = rank_ < other ? offer(other, key) : accept(other, key, deadline);
      }
    }
    return opened;
  }
  void missed(int rank, std::string_view) override {
    const Lock lock(mutex_);
    is_given_up_ = is_given_up_ || rank == rank_;
    if (rank == rank_) return;
    missed_.push_back(rank);
  }
  // Whether others have told this member that they go on without it.
  bool is_given_up() {
    const Lock lock(mutex_);
    return is_given_up_;
  }
  // The ranks, without repetition.
  std::vector<int> missed() {
    const Lock lock(mutex_);
    std::vector<int> ranks = missed_;
    std::sort(ranks.begin(), ranks.end());
    ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
    return ranks;
  }

 private:
  using Key = std::vector<std::uint64_t>;  // a path and a lane

  // Two ends of a connection of TCP, which do not block.
  static std::pair<FileDescriptor, FileDescriptor> connect() {
    FileDescriptor listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof(address);
    auto* const any = reinterpret_cast<sockaddr*>(&address);
    FileDescriptor near(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    COHORT_CHECK(::bind(listener.get(), any, length) == 0 && ::listen(listener.get(), 1) == 0 &&
                     ::getsockname(listener.get(), any, &length) == 0 &&
                     ::connect(near.get(), any, length) == 0,
                 ErrorCode::internal, "[testing.forked_links] no connection");
    FileDescriptor far(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    for (const FileDescriptor* end : {&near, &far}) {
      const int on = 1;
      (void)::setsockopt(end->get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
      // Shared by all processes that have the end.
      (void)::fcntl(end->get(), F_SETFL, O_NONBLOCK);
    }
    return {std::move(near), std::move(far)};
  }

  FileDescriptor offer(int other, const Key& key) {
    auto [mine, theirs] = connect();
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    iovec data{.iov_base = const_cast<std::uint64_t*>(key.data()), .iov_len = key.size() * 8};
    msghdr message = {};
    message.msg_iov = &data;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    const int fd = theirs.get();
    std::memcpy(CMSG_DATA(header), &fd, sizeof(fd));
    if (::sendmsg(ends_[static_cast<std::size_t>(other)].get(), &message, MSG_NOSIGNAL) < 0)
      throw Error(ErrorCode::unavailable, "[collective.open] the process has ended")
          .at(member_name(other));
    return std::move(mine);
  }

  FileDescriptor accept(int other, const Key& key, Deadline deadline) {
    while (true) {
      const Lock lock(mutex_);
      const auto found = accepted_.find({other, key});
      if (found != accepted_.end()) {
        FileDescriptor end = std::move(found->second);
        accepted_.erase(found);
        return end;
      }
      receive(other);
      if (deadline.has_expired())
        throw Error(ErrorCode::deadline_exceeded, "[collective.open] got nothing in time")
            .at(member_name(other));
    }
  }

  // Receives what is there, or waits for a moment.
  void receive(int other) COHORT_REQUIRES(mutex_) {
    const int socket = ends_[static_cast<std::size_t>(other)].get();
    pollfd waited{.fd = socket, .events = POLLIN, .revents = 0};
    if (::poll(&waited, 1, 10) <= 0) return;
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    std::uint64_t words[32] = {};
    iovec data{.iov_base = words, .iov_len = sizeof(words)};
    msghdr message = {};
    message.msg_iov = &data;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    const ssize_t got = ::recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
    const cmsghdr* const header = got > 0 ? CMSG_FIRSTHDR(&message) : nullptr;
    if (header == nullptr)
      throw Error(ErrorCode::unavailable, "[collective.open] the process has ended")
          .at(member_name(other));
    int fd = -1;
    std::memcpy(&fd, CMSG_DATA(header), sizeof(fd));
    accepted_[{other, Key(words, words + got / 8)}] = FileDescriptor(fd);
  }

  const int rank_;
  std::vector<std::string> hosts_;
  std::vector<FileDescriptor> ends_;
  std::vector<pid_t> processes_;
  std::vector<std::string> names_;
  Mutex mutex_;
  std::map<std::pair<int, Key>, FileDescriptor> accepted_ COHORT_GUARDED_BY(mutex_);
  std::vector<int> missed_ COHORT_GUARDED_BY(mutex_);
  bool is_given_up_ COHORT_GUARDED_BY(mutex_) = false;
};

}  // namespace cohort::testing
