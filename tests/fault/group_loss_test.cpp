// SPDX-License-Identifier: Apache-2.0
// Processes that are killed or stopped in the middle of collective calls.
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <new>
#include <ostream>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "cohort/collective/backends/hierarchical/member.h"
#include "cohort/collective/backends/shared_memory/member.h"
#include "cohort/core/error.h"
#include "cohort/testing/forked_links.h"
#include "cohort/testing/test_seed.h"

namespace cohort {
namespace {

using collective::Group;

// All members on one host, or on the hosts of these letters.
struct Layout {
  std::string name;
  std::string hosts;
};
void PrintTo(const Layout& layout, std::ostream* out) { *out << layout.name; }

constexpr int kSizeMax = 4;
constexpr auto kTimeout = std::chrono::milliseconds(1500);

// The report of a process, in memory that it shares with the test.
struct Outcome {
  std::atomic<std::uint64_t> num_calls;
  std::atomic<int> code;  // of the error; 0 while it makes calls
  std::atomic<int> origin;
  std::atomic<int> missed;        // a bit for each member
  std::atomic<bool> is_given_up;  // others have told it so
  std::atomic<int> later_code;
  char text[400] = {};  // of the last error
};

// Calls of random kinds and sizes until one fails.
void make_calls(Group& group, std::uint32_t seed, Outcome& outcome) {
  const int size = group.size();
  std::mt19937 random(seed);
  const auto split = group.split();
  // ForkedLinks::open() does not wait until the others have opened their connections, so one that
  // gives up in it looks like one that has ended. Hence nobody is stopped in it.
  split->barrier(Deadline::after(std::chrono::seconds(60)));
  while (true) {
    Group& used = random() % 4 == 0 ? *split : group;
    const Deadline deadline = Deadline::after(kTimeout);
    const std::int64_t count = random() % 3 == 0 ? 2'000'000 : random() % 30'000;
    const at::Tensor tensor = at::ones({count});
    switch (random() % 4) {
      case 0:
        used.all_gather(tensor, 0, deadline);
        break;
      case 1:
        used.exchange(Bytes(static_cast<std::size_t>(count)), "bytes", deadline);
        break;
      case 2:
        used.broadcast(tensor, 1, deadline);
        break;
      default:
        used.all_reduce(tensor, ReduceOp::sum, deadline);
        if (!tensor.eq(size).all().item<bool>()) {
          outcome.code = -1;
          return;
        }
    }
    outcome.num_calls += 1;
  }
}

void be_member(testing::ForkedSockets& sockets, const Layout& layout, int rank, std::uint32_t seed,
               Outcome& outcome) {
  std::vector<std::string> hosts;
  for (const char host : layout.hosts) hosts.emplace_back(1, host);
  const auto links = std::make_shared<testing::ForkedLinks>(sockets, rank, hosts);
  const Deadline late = Deadline::after(std::chrono::seconds(60));
  const auto group = collective::hierarchical::is_useful(*links)
                         ? collective::hierarchical::join(links, late)
                         : collective::shared_memory::join(links, late);
  const auto report = [&](const Error& error, std::atomic<int>& code) {
    for (const int missed : links->missed()) outcome.missed |= 1 << missed;
    outcome.is_given_up = links->is_given_up();
    if (!error.origin().empty()) outcome.origin = error.origin().back() - '0';
    std::snprintf(outcome.text, sizeof(outcome.text), "%s", error.message().c_str());
    code = static_cast<int>(error.code());
  };
  try {
    make_calls(*group, seed, outcome);
  } catch (const Error& error) {
    report(error, outcome.code);
  }
  try {
    group->barrier(Deadline::after(kTimeout));
  } catch (const Error& error) {
    report(error, outcome.later_code);
  }
}

class GroupLoss : public ::testing::TestWithParam<Layout> {
 protected:
  GroupLoss()
      : outcomes(static_cast<Outcome*>(::mmap(nullptr, sizeof(Outcome) * kSizeMax,
                                              PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
                                              -1, 0))) {}
  ~GroupLoss() override {
    for (const pid_t process : processes) {
      ::kill(process, SIGKILL);
      ::waitpid(process, nullptr, 0);
    }
    ::munmap(outcomes, sizeof(Outcome) * kSizeMax);
  }

  static int size() { return static_cast<int>(GetParam().hosts.size()); }
  void start(std::uint32_t seed) {
    testing::ForkedSockets sockets(size());
    for (int rank = 0; rank < size(); ++rank) {
      outcomes[rank].origin = -1;
      const pid_t process = ::fork();
      if (process == 0) {
        be_member(sockets, GetParam(), rank, seed, outcomes[rank]);
        ::_exit(0);
      }
      processes.push_back(process);
    }
  }
  template <class IsDone>
  static bool poll(const IsDone& is_done) {
    const Deadline deadline = Deadline::after(std::chrono::seconds(60));
    while (!is_done()) {
      if (deadline.has_expired()) return false;
      std::this_thread::yield();
    }
    return true;
  }
  // Until the members have made some calls, then a random time more, which ends anywhere in one.
  void run_for_a_while(std::mt19937& random) {
    ASSERT_TRUE(poll([&] { return outcomes[0].num_calls >= 5 || outcomes[0].code != 0; }));
    const auto end =
        std::chrono::steady_clock::now() + std::chrono::microseconds(random() % 20'000);
    ASSERT_TRUE(poll([&] { return std::chrono::steady_clock::now() >= end; }));
    for (int rank = 0; rank < size(); ++rank) ASSERT_EQ(outcomes[rank].code, 0) << rank;
  }
  bool await_end(int rank) {
    return poll([&] { return outcomes[rank].later_code != 0 || outcomes[rank].code < 0; });
  }
  void expect_blamed(int victim, int code) {
    for (int rank = 0; rank < size(); ++rank) {
      if (rank == victim) continue;
      ASSERT_TRUE(await_end(rank)) << "worker:" << rank << " hangs";
      EXPECT_EQ(outcomes[rank].code, code) << "worker:" << rank << ": " << outcomes[rank].text;
      EXPECT_EQ(outcomes[rank].origin, victim) << rank;
      EXPECT_EQ(outcomes[rank].missed, 1 << victim) << rank;
      EXPECT_FALSE(outcomes[rank].is_given_up) << rank;
    }
  }

  Outcome* outcomes;
  std::vector<pid_t> processes;
};

constexpr int kUnavailable = static_cast<int>(ErrorCode::unavailable);
constexpr int kLate = static_cast<int>(ErrorCode::deadline_exceeded);
constexpr int kAborted = static_cast<int>(ErrorCode::aborted);

TEST_P(GroupLoss, AKilledProcessIsNamedByAllOthers) {
  const testing::TestSeed seed;
  std::mt19937 random(seed.value());
  for (int round = 0; round < 12; ++round) {
    start(static_cast<std::uint32_t>(random()));
    const int victim = static_cast<int>(random() % static_cast<unsigned>(size()));
    run_for_a_while(random);
    ::kill(processes[static_cast<std::size_t>(victim)], SIGKILL);
    expect_blamed(victim, kUnavailable);
    for (const pid_t process : processes) ::waitpid(process, nullptr, 0);
    processes.clear();
    for (int rank = 0; rank < size(); ++rank) new (&outcomes[rank]) Outcome();
    if (HasFailure()) return;
  }
}

TEST_P(GroupLoss, AStoppedProcessIsNamedAndFindsTheEndWhenItGoesOn) {
  const testing::TestSeed seed;
  std::mt19937 random(seed.value());
  for (int round = 0; round < 5; ++round) {
    start(static_cast<std::uint32_t>(random()));
    const int victim = static_cast<int>(random() % static_cast<unsigned>(size()));
    run_for_a_while(random);
    ::kill(processes[static_cast<std::size_t>(victim)], SIGSTOP);
    expect_blamed(victim, kLate);
    ::kill(processes[static_cast<std::size_t>(victim)], SIGCONT);
    ASSERT_TRUE(await_end(victim));
    EXPECT_NE(outcomes[victim].code, -1) << "a wrong sum";
    EXPECT_EQ(outcomes[victim].later_code, kAborted);
    EXPECT_TRUE(outcomes[victim].is_given_up);
    for (const pid_t process : processes) ::waitpid(process, nullptr, 0);
    processes.clear();
    for (int rank = 0; rank < size(); ++rank) new (&outcomes[rank]) Outcome();
    if (HasFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, GroupLoss,
                         ::testing::Values(Layout{"one_host", "AAA"}, Layout{"two_hosts", "AABB"}),
                         [](const auto& instance) { return instance.param.name; });

}  // namespace
}  // namespace cohort
