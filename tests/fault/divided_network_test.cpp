// SPDX-License-Identifier: Apache-2.0
// Workers in network namespaces, between which the connection is cut: each side must know whether
// it may go on, and a lost host must be told from a slow one.
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cohort/collective/process_groups.h"
#include "cohort/core/error.h"
#include "cohort/net/socket.h"

namespace cohort::collective {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

constexpr int kWorkersMax = 4;
constexpr int kCannot = 77;  // this machine lets nobody make such networks

// A worker and the process that started it communicate through this.
struct Slot {
  std::atomic<bool> may_begin;  // its network is there
  std::atomic<bool> is_ready;   // it is in the group of all workers
  std::atomic<int> code;        // of the error that it got at last; 0 for none
  std::atomic<int> cause;
  std::atomic<int> size;  // of its group then
  std::atomic<bool> is_done;
  char text[600];
};
struct Board {
  std::array<Slot, kWorkersMax> slots;
  std::atomic<bool> may_go_on;
  std::atomic<bool> may_end;
};

void await(const std::atomic<bool>& flag) {
  while (!flag) ::poll(nullptr, 0, 5);
}

void require(bool condition, const std::string& what) {
  if (condition) return;
  std::fprintf(stderr, "%s\n", what.c_str());
  ::_exit(1);
}

int shell(const std::string& command) {
  const int status = std::system(("(" + command + ") >/dev/null 2>&1").c_str());
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

// Two switches with a cable between them. Workers are at either of them, each in a network of its
// own. Used only from the process that made it, which is root of a user namespace.
class Network {
 public:
  // Returns whether this machine can have it.
  static bool enter() {
    const auto uid = std::to_string(::geteuid()), gid = std::to_string(::getegid());
    if (::unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0) return false;
    std::ofstream("/proc/self/setgroups") << "deny";
    std::ofstream("/proc/self/uid_map") << "0 " + uid + " 1";
    std::ofstream("/proc/self/gid_map") << "0 " + gid + " 1";
    return shell(
               "ip link add switch_a type bridge && ip link add switch_b type bridge && "
               "ip link add cable_a type veth peer name cable_b && "
               "ip link set cable_a master switch_a && ip link set cable_b master switch_b && "
               "ip link set switch_a up && ip link set switch_b up && "
               "ip link set cable_a up && ip link set cable_b up") == 0;
  }
  static bool connect(int worker, pid_t process, char side) {
    const std::string i = std::to_string(worker), near = "near" + i, far = "far" + i;
    return shell("ip link add " + near + " type veth peer name " + far + " && ip link set " + far +
                 " netns " + std::to_string(process) + " && ip link set " + near +
                 " master switch_" + std::string(1, side) + " && ip link set " + near + " up") == 0;
  }
  static bool configure(int worker) {
    const std::string i = std::to_string(worker), far = "far" + i;
    return shell("ip link set lo up && ip addr add 10.99.0." + std::to_string(worker + 1) +
                 "/24 dev " + far + " && ip link set " + far + " up") == 0;
  }
  static void cut() { require(shell("ip link set cable_a down") == 0, "cannot cut the network"); }
};

using Body = std::function<void(ProcessGroups&, Group&, Board&, int worker)>;

void be_worker(int worker, int count, bool allow_minority, Board& board, const Body& body) {
  Slot& slot = board.slots.at(static_cast<std::size_t>(worker));
  await(slot.may_begin);
  require(Network::configure(worker), "cannot configure a network");
  ProcessGroupOptions options{
      .self = worker, .backend = GroupBackend::tcp, .allow_minority = allow_minority};
  for (int i = 0; i < count; ++i) {
    options.tasks.push_back(
        {"worker:" + std::to_string(i), "10.99.0." + std::to_string(i + 1) + ":2222"});
  }
  try {
    ProcessGroups groups(options);
    const std::shared_ptr<Group> all = groups.form(Deadline::after(60s)).group;
    all->barrier(Deadline::after(60s));
    slot.is_ready = true;
    await(board.may_go_on);
    body(groups, *all, board, worker);
  } catch (const Error& error) {
    std::snprintf(slot.text, sizeof slot.text, "%s", error.what());
    slot.cause = static_cast<int>(error.cause());
    slot.code = static_cast<int>(error.code());
  } catch (const std::exception& error) {
    require(false, error.what());
  }
  slot.is_done = true;
  await(board.may_end);
}

class DividedNetwork : public ::testing::Test {
 protected:
  DividedNetwork()
      : board(static_cast<Board*>(::mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE,
                                         MAP_SHARED | MAP_ANONYMOUS, -1, 0))) {}
  ~DividedNetwork() override { ::munmap(board, sizeof(Board)); }

  // A letter for each worker: the switch to which it is connected. Runs `body` in each; the network
  // is cut before that if `cuts`. False if this machine cannot do it.
  bool run(const std::string& sides, bool cuts, const Body& body) {
    const pid_t controller = ::fork();
    if (controller == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      control(sides, cuts, body);
    }
    int status = 0;
    ::waitpid(controller, &status, 0);
    if (WIFEXITED(status) && WEXITSTATUS(status) == kCannot) return false;
    EXPECT_EQ(status, 0);
    return true;
  }
  const Slot& slot(int worker) const { return board->slots.at(static_cast<std::size_t>(worker)); }
  void expect_alive(int worker, int size) const {
    EXPECT_EQ(slot(worker).code, 0) << slot(worker).text;
    EXPECT_EQ(slot(worker).size, size) << worker;
  }
  void expect_minority(int worker) const {
    EXPECT_EQ(slot(worker).code, static_cast<int>(ErrorCode::unavailable)) << slot(worker).text;
    EXPECT_EQ(slot(worker).cause, static_cast<int>(ErrorCause::must_restart)) << slot(worker).text;
    EXPECT_THAT(slot(worker).text, HasSubstr("expected more than half of the workers"));
  }

  Board* board;
  bool allow_minority = false;

 private:
  [[noreturn]] void control(const std::string& sides, bool cuts, const Body& body) {
    if (!Network::enter()) ::_exit(kCannot);
    const int count = static_cast<int>(sides.size());
    std::vector<pid_t> workers;
    for (int i = 0; i < count; ++i) {
      std::array<int, 2> pipe{};
      require(::pipe(pipe.data()) == 0, "no pipe");
      const pid_t worker = ::fork();
      if (worker == 0) {
        ::prctl(PR_SET_PDEATHSIG, SIGKILL);
        require(::unshare(CLONE_NEWNET) == 0, "no network namespace");
        require(::write(pipe[1], "x", 1) == 1, "a broken pipe");
        be_worker(i, count, allow_minority, *board, body);
        ::_exit(0);
      }
      char byte = 0;
      require(::read(pipe[0], &byte, 1) == 1, "a worker has ended");
      if (!Network::connect(i, worker, sides[static_cast<std::size_t>(i)])) ::_exit(kCannot);
      board->slots.at(static_cast<std::size_t>(i)).may_begin = true;
      workers.push_back(worker);
    }
    for (int i = 0; i < count; ++i) await_worker(i, workers, &Slot::is_ready);
    if (cuts) Network::cut();
    board->may_go_on = true;
    for (int i = 0; i < count; ++i) await_worker(i, workers, &Slot::is_done);
    board->may_end = true;
    for (const pid_t worker : workers) ::waitpid(worker, nullptr, 0);
    ::_exit(0);
  }
  void await_worker(int i, const std::vector<pid_t>& workers, std::atomic<bool> Slot::*flag) {
    const Slot& of = slot(i);
    const Deadline deadline = Deadline::after(120s);
    while (!(of.*flag) && !of.is_done) {
      require(!deadline.has_expired(), "worker:" + std::to_string(i) + " hangs");
      require(::kill(workers.at(static_cast<std::size_t>(i)), 0) == 0, "a worker has ended");
      ::poll(nullptr, 0, 5);
    }
    require(flag == &Slot::is_done || of.*flag, "no group: " + std::string(of.text));
  }
};

// The acts of a program after a loss.
void lose_and_rebuild(ProcessGroups& groups, Group& all, Board& board, int worker) {
  try {
    all.exchange({}, "nothing", Deadline::after(2s));
    require(false, "the network was not cut");
  } catch (const Error&) {
  }
  const Membership left = groups.form(Deadline::after(6s));
  left.group->barrier(Deadline::after(60s));
  board.slots.at(static_cast<std::size_t>(worker)).size = left.group->size();
}

// Regression: both sides went on, and each saved its values.
TEST_F(DividedNetwork, OnlyTheLargerSideGoesOn) {
  if (!run("aab", true, lose_and_rebuild)) GTEST_SKIP() << "no network namespaces";
  expect_alive(0, 2);
  expect_alive(1, 2);
  expect_minority(2);
}

TEST_F(DividedNetwork, OfTwoHalvesThatWithTheFirstWorkerGoesOn) {
  if (!run("ba", true, lose_and_rebuild)) GTEST_SKIP() << "no network namespaces";
  expect_alive(0, 1);
  expect_minority(1);
}

TEST_F(DividedNetwork, OfTwoPairsThatWithTheFirstWorkerGoesOn) {
  if (!run("baab", true, lose_and_rebuild)) GTEST_SKIP() << "no network namespaces";
  expect_alive(0, 2);
  expect_alive(3, 2);
  expect_minority(1);
  expect_minority(2);
}

TEST_F(DividedNetwork, BothSidesGoOnIfAllowed) {
  allow_minority = true;
  if (!run("ba", true, lose_and_rebuild)) GTEST_SKIP() << "no network namespaces";
  expect_alive(0, 1);
  expect_alive(1, 1);
}

// Regression: they waited until their deadline, 5 minutes by default, since the system does not ask
// whether the other host lives while data wait for an acknowledgement.
TEST_F(DividedNetwork, AHostThatIsLostInTheMiddleOfASumIsNoticed) {
  net::set_keep_alive({.idle = 1, .interval = 1, .count = 2});
  const bool can_run = run("ab", true, [](ProcessGroups&, Group& all, Board&, int worker) {
    all.all_reduce(at::full({8'000'000}, worker), ReduceOp::sum, Deadline::after(90s));
  });
  net::set_keep_alive({});
  if (!can_run) GTEST_SKIP() << "no network namespaces";
  for (const int worker : {0, 1}) {
    EXPECT_EQ(slot(worker).code, static_cast<int>(ErrorCode::unavailable)) << slot(worker).text;
    EXPECT_THAT(slot(worker).text, HasSubstr("worker:" + std::to_string(1 - worker)));
  }
}

// It reads nothing for longer than the system waits for an answer of a lost host.
TEST_F(DividedNetwork, ASlowWorkerIsNotTakenForALostHost) {
  net::set_keep_alive({.idle = 1, .interval = 1, .count = 2});
  const bool can_run = run("ab", false, [](ProcessGroups&, Group& all, Board& shared, int worker) {
    const at::Tensor mine = at::full({8'000'000}, worker + 1);
    if (worker == 1) ::poll(nullptr, 0, 8'000);
    all.all_reduce(mine, ReduceOp::sum, Deadline::after(90s));
    const bool is_right = at::equal(mine, at::full({8'000'000}, 3));
    shared.slots.at(static_cast<std::size_t>(worker)).size = is_right ? 2 : -1;
  });
  net::set_keep_alive({});
  if (!can_run) GTEST_SKIP() << "no network namespaces";
  expect_alive(0, 2);
  expect_alive(1, 2);
}

}  // namespace
}  // namespace cohort::collective
