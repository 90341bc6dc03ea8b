// SPDX-License-Identifier: Apache-2.0
// The workers of a cluster as threads of a test, each of which forms groups like a process.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cohort/collective/process_groups.h"
#include "cohort/core/bytes.h"
#include "cohort/core/clock.h"
#include "cohort/core/error.h"
#include "cohort/core/file_descriptor.h"

namespace cohort::testing {

// A port of 127.0.0.1 that no other program gets while this exists: bound, but not listening.
// Thread-compatible.
class BoundPort {
 public:
  BoundPort() : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const int on = 1;
    ::setsockopt(fd_.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    auto* where = reinterpret_cast<sockaddr*>(&address);
    const bool is_bound =
        ::bind(fd_.get(), where, size) == 0 && ::getsockname(fd_.get(), where, &size) == 0;
    COHORT_CHECK(is_bound, ErrorCode::internal, "[testing.port] no free port");
    address_ = "127.0.0.1:" + std::to_string(ntohs(address.sin_port));
  }
  const std::string& address() const { return address_; }

 private:
  FileDescriptor fd_;
  std::string address_;
};

// Listens there and accepts nothing.
inline FileDescriptor silent_listener(const std::string& address) {
  FileDescriptor fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = 1;
  ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  sockaddr_in where{};
  where.sin_family = AF_INET;
  where.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  where.sin_port =
      htons(static_cast<std::uint16_t>(std::stoi(address.substr(address.rfind(':') + 1))));
  COHORT_CHECK(::bind(fd.get(), reinterpret_cast<sockaddr*>(&where), sizeof where) == 0 &&
                   ::listen(fd.get(), 16) == 0,
               ErrorCode::internal, "[testing.listen] cannot listen at ", address);
  return fd;
}

// Thread-compatible.
class WorkerProcesses {
 public:
  struct Outcome {
    std::optional<collective::Membership> membership = {};
    std::optional<Error> error = {};
  };
  using Outcomes = std::map<int, Outcome>;

  explicit WorkerProcesses(int count) : ports_(static_cast<std::size_t>(count)) {
    for (int i = 0; i < count; ++i) {
      tasks_.push_back(
          {"worker:" + std::to_string(i), ports_[static_cast<std::size_t>(i)].address()});
    }
  }
  const std::string& address(int task) const {
    return tasks_[static_cast<std::size_t>(task)].address;
  }
  collective::ProcessGroupOptions options(int task) const {
    // It connects members in their first call, so tests of links can keep one from it.
    return {.tasks = tasks_, .self = task, .backend = GroupBackend::tcp, .job = "test"};
  }
  void start(int task) { start(options(task)); }
  void start(collective::ProcessGroupOptions options) {
    const int task = options.self;
    running_[task] = std::make_unique<collective::ProcessGroups>(std::move(options));
  }
  void start_all() {
    for (int task = 0; task < static_cast<int>(tasks_.size()); ++task) start(task);
  }
  void end(int task) { running_.erase(task); }
  collective::ProcessGroups& operator[](int task) { return *running_.at(task); }

  // Calls form() on all of these at the same time.
  Outcomes form(const std::vector<int>& tasks, Duration timeout = std::chrono::seconds(20),
                Duration return_wait = Duration::zero()) {
    Outcomes outcomes;
    for (const int task : tasks) outcomes[task];
    std::vector<std::thread> threads;
    for (const int task : tasks) {
      threads.emplace_back([this, &outcome = outcomes.at(task), task, timeout, return_wait] {
        try {
          outcome.membership = running_.at(task)->form(Deadline::after(timeout), return_wait);
        } catch (const Error& error) {
          outcome.error = error;
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    return outcomes;
  }

 private:
  std::vector<BoundPort> ports_;
  std::vector<collective::WorkerTask> tasks_;
  std::map<int, std::unique_ptr<collective::ProcessGroups>> running_;
};

inline Bytes one_byte(int value) { return {static_cast<std::byte>(value)}; }

// All of these are in one group of these tasks, and can exchange bytes.
inline void expect_group(WorkerProcesses::Outcomes& outcomes, const std::vector<int>& tasks) {
  std::vector<std::thread> threads;
  for (const int task : tasks) {
    const WorkerProcesses::Outcome& outcome = outcomes.at(task);
    ASSERT_FALSE(outcome.error) << task << ": " << outcome.error->what();
    EXPECT_EQ(outcome.membership->tasks, tasks);
    EXPECT_EQ(outcome.membership->number, outcomes.at(tasks[0]).membership->number);
    EXPECT_EQ(outcome.membership->survivor, outcomes.at(tasks[0]).membership->survivor);
    EXPECT_EQ(outcome.membership->is_new, outcomes.at(tasks[0]).membership->is_new);
  }
  for (const int task : tasks) {
    threads.emplace_back([&, task] {
      collective::Group& group = *outcomes.at(task).membership->group;
      std::vector<Bytes> expected;
      for (const int other : tasks) expected.push_back(one_byte(other));
      EXPECT_EQ(tasks.at(static_cast<std::size_t>(group.rank())), task);
      EXPECT_EQ(group.member_name(group.rank()), "worker:" + std::to_string(task));
      try {
        EXPECT_EQ(
            group.exchange(one_byte(task), "a byte", Deadline::after(std::chrono::seconds(20))),
            expected);
      } catch (const Error& error) {
        ADD_FAILURE() << task << ": " << error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace cohort::testing
