// SPDX-License-Identifier: Apache-2.0
// Processes whose group is connected by TCP, of which one is killed or stopped at a random time.
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "cohort/collective/backends/tcp/member.h"
#include "cohort/core/error.h"
#include "cohort/testing/socket_pairs.h"
#include "cohort/testing/test_seed.h"

namespace cohort::collective {
namespace {

using Sockets = std::vector<FileDescriptor>;

// The sockets of one member, which were connected before it became a process. Thread-compatible.
class GivenLinks final : public Links {
 public:
  GivenLinks(int rank, int size, Sockets sockets)
      : rank_(rank), size_(size), sockets_(std::move(sockets)) {
    for (int i = 0; i < size; ++i) names_.push_back("worker:" + std::to_string(i));
  }
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  const std::string& member_name(int rank) const override {
    return names_[static_cast<std::size_t>(rank)];
  }
  const std::string& host(int) const override { return host_; }
  std::int64_t process(int) const override { return ::getpid(); }
  Sockets open(const SplitPath&, int, Deadline) override { return std::move(sockets_); }
  void missed(int, std::string_view) override {}

 private:
  const int rank_;
  const int size_;
  Sockets sockets_;
  std::vector<std::string> names_;
  const std::string host_ = "here";
};

// Two lanes between each two members.
std::vector<Sockets> connected(int size) {
  const auto count = static_cast<std::size_t>(size);
  std::vector<Sockets> all;
  for (int i = 0; i < size; ++i) all.emplace_back(count * 2);
  for (std::size_t a = 0; a < count; ++a) {
    for (std::size_t b = a + 1; b < count; ++b) {
      for (std::size_t lane = 0; lane < 2; ++lane) {
        testing::SocketPair pair = testing::tcp_pair();
        all[a][b * 2 + lane] = std::move(pair[0]);
        all[b][a * 2 + lane] = std::move(pair[1]);
      }
    }
  }
  return all;
}

// Calls all_reduce() until it fails. Writes a dot after each right result, then the error.
[[noreturn]] void be_member(int rank, int size, Sockets sockets, unsigned seed, int out) {
  const auto write = [out](const std::string& text) {
    if (::write(out, text.data(), text.size()) < 0) ::_exit(1);
  };
  try {
    const auto group = tcp::join(std::make_shared<GivenLinks>(rank, size, std::move(sockets)));
    std::mt19937 random(seed);  // the same values on all members
    for (int call = 0; call < 20'000; ++call) {
      const std::int64_t count = random() % 3 == 0 ? random() % 1'000'000 : random() % 100;
      const at::Tensor mine = at::full({count}, rank + call, at::kFloat);
      group->all_reduce(mine, ReduceOp::sum, Deadline::after(std::chrono::seconds(2)));
      const int sum = size * (size - 1) / 2 + size * call;
      write(at::equal(mine, at::full({count}, sum, at::kFloat)) ? "." : "wrong result");
    }
  } catch (const Error& error) {
    write(std::string(name_of(error.code())) + " " + error.origin());
  } catch (const std::exception& error) {
    write(error.what());
  }
  ::_exit(0);
}

// The processes of a group. Used only from one thread.
class MemberProcesses {
 public:
  MemberProcesses(int size, unsigned seed) {
    std::vector<Sockets> sockets = connected(size);
    for (int rank = 0; rank < size; ++rank) {
      int pipe[2] = {-1, -1};
      EXPECT_EQ(::pipe2(pipe, O_CLOEXEC), 0);
      outputs_.emplace_back(pipe[0]);
      const FileDescriptor out(pipe[1]);
      const pid_t pid = ::fork();
      if (pid == 0) {
        Sockets mine = std::move(sockets[static_cast<std::size_t>(rank)]);
        sockets.clear();
        be_member(rank, size, std::move(mine), seed, out.get());
      }
      pids_.push_back(pid);
    }
  }
  ~MemberProcesses() {
    for (const pid_t pid : pids_) {
      ::kill(pid, SIGKILL);
      ::waitpid(pid, nullptr, 0);
    }
  }
  MemberProcesses(const MemberProcesses&) = delete;
  MemberProcesses& operator=(const MemberProcesses&) = delete;

  void signal(int rank, int number) { ::kill(pids_[static_cast<std::size_t>(rank)], number); }
  void await_results(int rank, unsigned count) {
    char dot = 0;
    while (count > 0 && ::read(outputs_[static_cast<std::size_t>(rank)].get(), &dot, 1) == 1)
      --count;
  }
  // The text that the member writes until it ends, without the dots.
  std::string error_of(int rank) {
    std::string text;
    char next = 0;
    pollfd output{outputs_[static_cast<std::size_t>(rank)].get(), POLLIN, 0};
    while (::poll(&output, 1, 60'000) == 1 && ::read(output.fd, &next, 1) == 1) {
      if (next != '.') text += next;
    }
    return text;
  }

 private:
  Sockets outputs_;
  std::vector<pid_t> pids_;
};

void lose_members(int signal, int rounds, const std::string& code) {
  const testing::TestSeed seed;
  std::mt19937 random(seed.value());
  for (int round = 0; round < rounds; ++round) {
    const int size = 2 + round % 2;
    const int victim = static_cast<int>(random() % static_cast<unsigned>(size));
    MemberProcesses members(size, static_cast<unsigned>(random()));
    members.await_results(victim, static_cast<unsigned>(random() % 60));
    members.signal(victim, signal);
    for (int rank = 0; rank < size; ++rank) {
      if (rank == victim) continue;
      EXPECT_EQ(members.error_of(rank), code + " worker:" + std::to_string(victim))
          << "worker:" << rank << " of " << size << ", round " << round;
    }
  }
}

TEST(TcpGroupProcesses, AllMembersNameOneThatIsKilled) { lose_members(SIGKILL, 12, "unavailable"); }

TEST(TcpGroupProcesses, AllMembersNameOneThatIsStopped) {
  lose_members(SIGSTOP, 4, "deadline_exceeded");
}

}  // namespace
}  // namespace cohort::collective
