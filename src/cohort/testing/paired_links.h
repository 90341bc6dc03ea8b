// SPDX-License-Identifier: Apache-2.0
// Links between threads of one process, over pairs of sockets; for tests of backends.
#pragma once

#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cohort/collective/links.h"
#include "cohort/core/clock.h"
#include "cohort/core/error.h"
#include "cohort/core/file_descriptor.h"
#include "cohort/core/mutex.h"
#include "cohort/testing/socket_pairs.h"

namespace cohort::testing {

// Makes the connection between two members in a lane.
using MakePair = std::function<SocketPair(int first, int second, int lane)>;

// The sockets of all members. Thread-safe.
class PairedSockets {
 public:
  explicit PairedSockets(
      int size, MakePair make_pair = [](int, int, int) { return unix_pair(); })
      : size_(size), make_pair_(std::move(make_pair)) {}
  int size() const { return size_; }

  std::vector<FileDescriptor> open(const collective::SplitPath& path, int rank, int lanes,
                                   Deadline deadline) {
    const Lock lock(mutex_);
    Opening& opening = openings_[path];
    if (opening.of_members.empty()) opening = make(lanes);
    opening.arrived.insert(rank);
    changed_.notify_all();
    const auto are_all_here = [&] { return static_cast<int>(opening.arrived.size()) == size_; };
    const auto is_settled = [&]() COHORT_REQUIRES(mutex_) {
      return are_all_here() || first_gone(opening) >= 0;
    };
    changed_.wait(mutex_, deadline, is_settled);
    if (!are_all_here() && first_gone(opening) >= 0) {
      const std::string name = "worker:" + std::to_string(first_gone(opening));
      throw Error(ErrorCode::aborted, "[collective.open] expected " + name + ", which has left")
          .at(name);
    }
    if (!are_all_here()) {
      std::string missing;
      for (int other = 0; other < size_; ++other) {
        if (!opening.arrived.contains(other)) missing += " worker:" + std::to_string(other);
      }
      internal::throw_error(ErrorCode::deadline_exceeded, "[collective.open] waited for", missing);
    }
    return std::move(opening.of_members[static_cast<std::size_t>(rank)]);
  }
  void leave(int rank) {
    const Lock lock(mutex_);
    gone_.insert(rank);
    changed_.notify_all();
  }
  void missed(int by, int rank) {
    const Lock lock(mutex_);
    missed_.insert({by, rank});
  }
  // Who missed whom.
  std::set<std::pair<int, int>> missed() {
    const Lock lock(mutex_);
    return missed_;
  }

 private:
  struct Opening {
    std::vector<std::vector<FileDescriptor>> of_members = {};
    std::set<int> arrived = {};
  };

  // A member that has left without opening; -1: none.
  int first_gone(const Opening& opening) const COHORT_REQUIRES(mutex_) {
    for (const int rank : gone_) {
      if (!opening.arrived.contains(rank)) return rank;
    }
    return -1;
  }
  Opening make(int lanes) const {
    Opening opening;
    const auto count = static_cast<std::size_t>(size_) * static_cast<std::size_t>(lanes);
    for (int rank = 0; rank < size_; ++rank) opening.of_members.emplace_back(count);
    const auto at = [&](int a, int b, int lane) -> FileDescriptor& {
      return opening
          .of_members[static_cast<std::size_t>(a)][static_cast<std::size_t>(b * lanes + lane)];
    };
    for (int a = 0; a < size_; ++a) {
      for (int b = a + 1; b < size_; ++b) {
        for (int lane = 0; lane < lanes; ++lane) {
          SocketPair pair = make_pair_(a, b, lane);
          at(a, b, lane) = std::move(pair[0]);
          at(b, a, lane) = std::move(pair[1]);
        }
      }
    }
    return opening;
  }

  const int size_;
  const MakePair make_pair_;
  Mutex mutex_;
  Condition changed_;
  std::map<collective::SplitPath, Opening> openings_ COHORT_GUARDED_BY(mutex_);
  std::set<int> gone_ COHORT_GUARDED_BY(mutex_);
  std::set<std::pair<int, int>> missed_ COHORT_GUARDED_BY(mutex_);
};

// One member's. `hosts`: the name of each member's host; empty: all are on one. Thread-safe.
class PairedLinks final : public collective::Links {
 public:
  PairedLinks(std::shared_ptr<PairedSockets> sockets, int rank, std::vector<std::string> hosts = {})
      : sockets_(std::move(sockets)), rank_(rank), hosts_(std::move(hosts)) {
    hosts_.resize(static_cast<std::size_t>(sockets_->size()), "here");
    for (int i = 0; i < sockets_->size(); ++i) names_.push_back("worker:" + std::to_string(i));
  }
  ~PairedLinks() override { sockets_->leave(rank_); }
  PairedLinks(const PairedLinks&) = delete;
  PairedLinks& operator=(const PairedLinks&) = delete;
  int rank() const override { return rank_; }
  int size() const override { return sockets_->size(); }
  const std::string& member_name(int rank) const override {
    return names_[static_cast<std::size_t>(rank)];
  }
  const std::string& host(int rank) const override {
    return hosts_[static_cast<std::size_t>(rank)];
  }
  std::int64_t process(int) const override { return ::getpid(); }
  std::vector<FileDescriptor> open(const collective::SplitPath& path, int lanes,
                                   Deadline deadline) override {
    return sockets_->open(path, rank_, lanes, deadline);
  }
  void missed(int rank, std::string_view) override {
    if (rank == rank_)
      is_given_up_ = true;
    else
      sockets_->missed(rank_, rank);
  }
  // Whether others have told this member that they go on without it.
  bool is_given_up() const { return is_given_up_; }

 private:
  const std::shared_ptr<PairedSockets> sockets_;
  const int rank_;
  std::atomic<bool> is_given_up_ = false;
  std::vector<std::string> hosts_;
  std::vector<std::string> names_;
};

}  // namespace cohort::testing
