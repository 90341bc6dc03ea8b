// SPDX-License-Identifier: Apache-2.0
// Workers form groups, and new ones after losses.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/version.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <fstream>
#include <future>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "cohort/collective/formation/formation.h"
#include "cohort/collective/formation/former.h"
#include "cohort/collective/formation/listener.h"
#include "cohort/collective/formation/message.h"
#include "cohort/collective/formation/on_backend.h"
#include "cohort/collective/process_groups.h"
#include "cohort/core/error.h"
#include "cohort/core/random.h"
#include "cohort/net/socket.h"
#include "cohort/testing/paired_links.h"
#include "cohort/testing/raw_socket.h"
#include "cohort/testing/throws_error.h"
#include "cohort/testing/warnings.h"
#include "cohort/testing/without_descriptors.h"
#include "cohort/testing/worker_processes.h"

namespace cohort::collective {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::ElementsAre;
using testing::expect_group;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::one_byte;
using testing::RawSocket;
using testing::throws_error;
using testing::Warnings;
using testing::WorkerProcesses;
using Outcomes = WorkerProcesses::Outcomes;

class FirstGroup : public ::testing::TestWithParam<int> {};

TEST_P(FirstGroup, HasAllWorkers) {
  WorkerProcesses workers(GetParam());
  workers.start_all();
  std::vector<int> all;
  for (int task = 0; task < GetParam(); ++task) all.push_back(task);
  Outcomes outcomes = workers.form(all);
  expect_group(outcomes, all);
  const Membership& membership = *outcomes.at(0).membership;
  EXPECT_EQ(membership.number, 1u);
  EXPECT_FALSE(membership.survivor);
  EXPECT_EQ(membership.is_new, std::vector<bool>(all.size(), true));
}

INSTANTIATE_TEST_SUITE_P(Sizes, FirstGroup, ::testing::Values(1, 2, 3, 4, 8));

bool has_ipv6() {
  std::string line;
  return static_cast<bool>(std::getline(std::ifstream("/proc/net/if_inet6"), line));
}

TEST(ProcessGroups, FindEachOtherByNameAndIpv6) {
  WorkerProcesses workers(3);
  std::vector<WorkerTask> tasks = workers.options(0).tasks;
  const auto port = [&](std::size_t task) {
    return tasks[task].address.substr(tasks[task].address.rfind(':'));
  };
  tasks[0].address = "localhost" + port(0);
  if (has_ipv6()) tasks[1].address = "[::1]" + port(1);
  for (int task = 0; task < 3; ++task) workers.start({.tasks = tasks, .self = task, .job = "test"});
  Outcomes outcomes = workers.form({0, 1, 2});
  expect_group(outcomes, {0, 1, 2});
}

// The others wait for its name like for its process.
TEST(ProcessGroups, NameAWorkerWhoseHostIsUnknown) {
  WorkerProcesses workers(2);
  std::vector<WorkerTask> tasks = workers.options(0).tasks;
  tasks[1].address = "no-such-host.invalid:2222";
  workers.start({.tasks = tasks, .self = 0, .job = "test"});
  Outcomes outcomes = workers.form({0}, 300ms);
  ASSERT_TRUE(outcomes.at(0).error);
  EXPECT_EQ(outcomes.at(0).error->code(), ErrorCode::deadline_exceeded);
  EXPECT_THAT(outcomes.at(0).error->message(), HasSubstr("no-such-host.invalid:2222"));
}

TEST(ProcessGroups, NameMissingWorkersOnAllOthers) {
  WorkerProcesses workers(3);
  workers.start(0);
  workers.start(1);
  Outcomes outcomes = workers.form({0, 1}, 500ms);
  for (const int task : {0, 1}) {
    ASSERT_TRUE(outcomes.at(task).error);
    EXPECT_EQ(outcomes.at(task).error->code(), ErrorCode::deadline_exceeded);
    EXPECT_EQ(outcomes.at(task).error->origin(), "worker:2");
    EXPECT_THAT(outcomes.at(task).error->message(),
                AllOf(HasSubstr("worker:2 (" + workers.address(2)), Not(HasSubstr("worker:0")),
                      Not(HasSubstr("worker:1"))));
  }
}

TEST(ProcessGroups, FormAfterAFormationThatFailed) {
  WorkerProcesses workers(2);
  workers.start(1);
  EXPECT_TRUE(workers.form({1}, 200ms).at(1).error);
  workers.start(0);
  Outcomes outcomes = workers.form({0, 1});
  expect_group(outcomes, {0, 1});
}

// Regression: it named those who had waited for the same worker, but not as long.
TEST(ProcessGroups, NameNotThoseWhoHaveWaitedInVain) {
  WorkerProcesses workers(3);
  workers.start(0);
  workers.start(1);
  std::thread first([&] {
    EXPECT_TRUE(workers.form({0}, 1s).at(0).error);
    workers.end(0);
  });
  const Outcomes outcomes = workers.form({1}, 4s);
  first.join();
  ASSERT_TRUE(outcomes.at(1).error);
  EXPECT_EQ(outcomes.at(1).error->origin(), "worker:2");
  EXPECT_THAT(outcomes.at(1).error->message(), Not(HasSubstr("worker:0")));
}

TEST(ProcessGroups, ListenAtTheirAddress) {
  WorkerProcesses workers(2);
  workers.start(0);
  EXPECT_THAT([&] { ProcessGroups(workers.options(0)); },
              throws_error(ErrorCode::resource_exhausted, workers.address(0)));
  EXPECT_THAT(
      [&] {
        ProcessGroups({.tasks = {{"worker:0", "127.0.0.1"}}});
      },
      throws_error(ErrorCode::invalid_argument, "host:port"));
  EXPECT_THAT(
      [&] {
        ProcessGroups({.tasks = {{"worker:0", "192.0.2.1:5000"}}});
      },
      throws_error(ErrorCode::invalid_argument,
                   "an address of this machine, got 192.0.2.1:5000; start the task on that host"));
  EXPECT_THAT(
      [&] {
        ProcessGroups({.tasks = {{"worker:0", "127.0.0.1:5000"}}, .self = 1});
      },
      throws_error(ErrorCode::invalid_argument, "0 to 0, got 1"));
}

TEST(ProcessGroups, GoOnWithoutAProcessThatEnded) {
  for (const int ended : {0, 1, 2}) {
    WorkerProcesses workers(3);
    workers.start_all();
    Outcomes first = workers.form({0, 1, 2});
    expect_group(first, {0, 1, 2});
    workers.end(ended);
    std::vector<int> others{0, 1, 2};
    std::erase(others, ended);
    Warnings warnings;
    Outcomes second = workers.form(others);
    expect_group(second, others);
    const Membership& membership = *second.at(others[0]).membership;
    EXPECT_EQ(membership.number, 2u);
    EXPECT_EQ(membership.survivor, 0);
    EXPECT_THAT(membership.is_new, ElementsAre(false, false));
    EXPECT_THAT(warnings.text(), HasSubstr("without worker:" + std::to_string(ended)));
  }
}

TEST(ProcessGroups, EndTheLastGroupForItsMembers) {
  WorkerProcesses workers(2);
  workers.start_all();
  Outcomes first = workers.form({0, 1});
  expect_group(first, {0, 1});
  std::thread other([&] {
    EXPECT_THAT(
        [&] { first.at(1).membership->group->exchange({}, "nothing", Deadline::after(20s)); },
        throws_error(ErrorCode::unavailable, "worker:0"));
    Outcomes second = workers.form({1});
    EXPECT_FALSE(second.at(1).error);
  });
  Outcomes second = workers.form({0});
  other.join();
  ASSERT_FALSE(second.at(0).error) << second.at(0).error->what();
  EXPECT_EQ(second.at(0).membership->number, 2u);
  EXPECT_THAT([&] { first.at(0).membership->group->split()->exchange({}, "nothing", Deadline()); },
              throws_error(ErrorCode::aborted, "group 1 was replaced by group 2"));
}

TEST(ProcessGroups, GoOnWithoutAMemberThatHangs) {
  WorkerProcesses workers(3);
  workers.start_all();
  Outcomes first = workers.form({0, 1, 2});
  expect_group(first, {0, 1, 2});
  for (const int task : {0, 2}) {
    EXPECT_THROW(first.at(task).membership->group->exchange({}, "nothing", Deadline::after(50ms)),
                 Error);
  }
  Outcomes second = workers.form({0, 2});
  expect_group(second, {0, 2});
  // It comes back.
  std::thread late([&] {
    Outcomes third = workers.form({1});
    EXPECT_FALSE(third.at(1).error);
    EXPECT_THAT(third.at(1).membership->is_new, ElementsAre(false, true, false));
  });
  Outcomes third;
  const Deadline deadline = Deadline::after(20s);
  do {
    third = workers.form({0, 2});
    ASSERT_FALSE(third.at(0).error);
  } while (third.at(0).membership->tasks.size() < 3 && !deadline.has_expired());
  late.join();
  EXPECT_EQ(third.at(0).membership->survivor, 0);
}

TEST(ProcessGroups, GoOnAtTheDeadlineWithoutMembersThatDidNotCome) {
  WorkerProcesses workers(3);
  workers.start_all();
  Outcomes first = workers.form({0, 1, 2});
  expect_group(first, {0, 1, 2});
  Outcomes second = workers.form({1, 2}, 1500ms);
  expect_group(second, {1, 2});
}

// Regression: a process that others had left behind formed a group alone when they had ended, and
// went on from its old values.
TEST(ProcessGroups, DoNotGoOnAloneAfterANewerGroup) {
  WorkerProcesses workers(3);
  workers.start_all();
  Outcomes first = workers.form({0, 1, 2});
  for (const int task : {0, 1}) {
    EXPECT_THROW(first.at(task).membership->group->exchange({}, "nothing", Deadline::after(50ms)),
                 Error);
  }
  Outcomes second = workers.form({0, 1});
  expect_group(second, {0, 1});
  Outcomes behind = workers.form({2}, 1s);
  ASSERT_TRUE(behind.at(2).error);
  EXPECT_THAT(behind.at(2).error->message(), HasSubstr("they train in group 2"));
  workers.end(0);
  workers.end(1);
  behind = workers.form({2});
  ASSERT_TRUE(behind.at(2).error);
  EXPECT_EQ(behind.at(2).error->code(), ErrorCode::unavailable);
  EXPECT_EQ(behind.at(2).error->cause(), ErrorCause::must_restart);
  EXPECT_THAT(behind.at(2).error->message(),
              HasSubstr("they have ended; end this process and start it again"));
}

// The process of a worker that takes part in forming a group, and ends before it connects. Sets
// `listens` when the others can find it.
void form_and_end(const ProcessGroupOptions& options, std::promise<void>& listens) {
  formation::Identity self{.job = options.job,
                           .backend = options.backend,
                           .torch_version = TORCH_VERSION,
                           .self = {options.self, 4711}};
  std::vector<std::string> names;
  for (const WorkerTask& task : options.tasks) {
    self.tasks_hash = mix_seed(mix_seed(self.tasks_hash, task.name), task.address);
    names.push_back(task.name);
  }
  formation::Formation formation(self, names);
  std::string address = options.tasks.at(static_cast<std::size_t>(options.self)).address;
  const formation::Listener listener(
      net::listen_on_all(address),
      {.strangers_max = 64,
       .peers_max = 64,
       .question_bytes_max = 65'536,
       .answer = [&](const auto& request, std::uint64_t connection,
                     auto&) { return formation.answer(request, connection); },
       .closed = [&](std::uint64_t connection) { formation.closed(connection); }});
  formation.look();
  listens.set_value();
  formation::Former(options.tasks, self, formation,
                    {.host = formation::own_host(), .process = ::getpid()}, Deadline::after(20s),
                    Duration::zero())
      .run();
}

// Worker 0 has missed group 2, of 1 and 2, and gets into group 3, in which it cannot connect.
class AStaleMember : public ::testing::Test {
 protected:
  AStaleMember() : workers(3) {
    for (int task = 0; task < 3; ++task) workers.start(options(task));
    Outcomes first = workers.form({0, 1, 2});
    for (const int task : {1, 2}) {
      EXPECT_THROW(first.at(task).membership->group->exchange({}, "nothing", Deadline::after(50ms)),
                   Error);
    }
    Outcomes second = workers.form({1, 2});
    expect_group(second, {1, 2});
    workers.end(2);
    std::promise<void> listens;
    std::thread ending([&] { form_and_end(options(2), listens); });
    listens.get_future().wait();
    Outcomes third = workers.form({0, 1});
    ending.join();
    EXPECT_TRUE(third.at(0).error && third.at(1).error);
  }
  ProcessGroupOptions options(int task) const {
    ProcessGroupOptions all = workers.options(task);
    all.backend = GroupBackend::shared_memory;  // it connects at once
    return all;
  }
  WorkerProcesses workers;
};

// Regression: it passed for one that had the values of group 3, and as the first of them replaced
// those of the others by its own, older ones.
TEST_F(AStaleMember, IsNewAgainIfItCouldNotConnect) {
  Outcomes fourth = workers.form({0, 1});
  expect_group(fourth, {0, 1});
  EXPECT_EQ(fourth.at(0).membership->number, 4u);
  EXPECT_EQ(fourth.at(0).membership->survivor, 1);
  EXPECT_THAT(fourth.at(0).membership->is_new, ElementsAre(true, false));
}

TEST_F(AStaleMember, DoesNotGoOnAloneIfItCouldNotConnect) {
  workers.end(1);
  Outcomes alone = workers.form({0}, 1s);
  ASSERT_TRUE(alone.at(0).error);
  EXPECT_THAT(alone.at(0).error->message(), HasSubstr("the workers of group 2"));
}

TEST(ProcessGroups, RefuseSharedMemoryBetweenHosts) {
  const auto sockets = std::make_shared<testing::PairedSockets>(2);
  const auto links =
      std::make_shared<testing::PairedLinks>(sockets, 0, std::vector<std::string>{"here", "there"});
  EXPECT_THAT([&] { formation::on_backend(links, GroupBackend::shared_memory, Deadline()); },
              throws_error(ErrorCode::invalid_argument, "use GroupBackend::automatic or tcp"));
}

TEST(ProcessGroups, TakeInAProcessThatStartedAgain) {
  for (const int restarted : {0, 2}) {
    WorkerProcesses workers(3);
    workers.start_all();
    Outcomes first = workers.form({0, 1, 2});
    expect_group(first, {0, 1, 2});
    workers.end(restarted);
    workers.start(restarted);
    Outcomes second = workers.form({0, 1, 2});
    expect_group(second, {0, 1, 2});
    const Membership& membership = *second.at(0).membership;
    EXPECT_EQ(membership.survivor, restarted == 0 ? 1 : 0);
    std::vector<bool> is_new(3, false);
    is_new[static_cast<std::size_t>(restarted)] = true;
    EXPECT_EQ(membership.is_new, is_new);
  }
}

// The others train in group 2, which each test keeps.
Outcomes start_again_beside_a_group(WorkerProcesses& workers) {
  workers.start_all();
  Outcomes first = workers.form({0, 1, 2});
  expect_group(first, {0, 1, 2});
  workers.end(0);
  Outcomes second = workers.form({1, 2});
  expect_group(second, {1, 2});
  workers.start(0);
  return second;
}

TEST(ProcessGroups, DoNotWaitForOthersThatTrain) {
  WorkerProcesses workers(3);
  Outcomes second = start_again_beside_a_group(workers);
  Outcomes alone = workers.form({0}, 500ms);
  ASSERT_TRUE(alone.at(0).error);
  EXPECT_EQ(alone.at(0).error->code(), ErrorCode::deadline_exceeded);
  EXPECT_THAT(alone.at(0).error->message(), HasSubstr("they train in group 2"));
  expect_group(second, {1, 2});  // it was not disturbed
  Outcomes third = workers.form({0, 1, 2});
  expect_group(third, {0, 1, 2});
  EXPECT_EQ(third.at(0).membership->number, 3u);
  EXPECT_EQ(third.at(0).membership->survivor, 1);
}

// Regression: a worker that started again gave up while the others still trained in their epoch.
TEST(ProcessGroups, WaitLongerForOthersThatTrainThanForOthersThatDoNotCome) {
  WorkerProcesses workers(3);
  const Outcomes second = start_again_beside_a_group(workers);
  Warnings warnings;
  const auto num_waits = [&] { return warnings.count("waits until they call rebuild()"); };
  // It waits again and again for `wait` from the last time that it has heard that they train. On a
  // busy machine that may be too short: then it tries again with twice the time.
  Outcomes back;
  Outcomes third;
  for (Duration wait = 200ms; !back[0].membership; wait *= 2) {
    ASSERT_LT(wait, 30s) << back.at(0).error->what();
    const int num_before = num_waits();
    const auto has_begun = std::chrono::steady_clock::now();
    std::atomic<bool> has_ended = false;
    std::thread waiting([&] {
      back = workers.form({0}, wait, 60s);
      has_ended = true;
    });
    while (!has_ended &&
           (num_waits() == num_before || std::chrono::steady_clock::now() - has_begun < 3 * wait))
      std::this_thread::yield();
    if (!has_ended) third = workers.form({1, 2});
    waiting.join();
    EXPECT_LE(num_waits(), num_before + 1);
  }
  EXPECT_GE(num_waits(), 1);
  EXPECT_THAT(third.at(1).membership->tasks, ElementsAre(0, 1, 2));
  // It does not wait for those that have ended meanwhile.
  workers.end(0);
  workers.end(1);
  workers.end(2);
  workers.start(0);
  const Outcomes alone = workers.form({0}, 200ms, 60s);
  ASSERT_TRUE(alone.at(0).error);
  EXPECT_EQ(alone.at(0).error->code(), ErrorCode::deadline_exceeded);
}

TEST(ProcessGroups, FormAgainWithAllMembers) {
  WorkerProcesses workers(4);
  workers.start_all();
  for (std::uint64_t number = 1; number <= 4; ++number) {
    Outcomes outcomes = workers.form({0, 1, 2, 3});
    expect_group(outcomes, {0, 1, 2, 3});
    EXPECT_EQ(outcomes.at(0).membership->number, number);
  }
}

TEST(ProcessGroups, AreNotDisturbedByStrangers) {
  WorkerProcesses workers(2);
  workers.start_all();
  std::vector<RawSocket> slow;
  for (int i = 0; i < 100; ++i) slow.push_back(RawSocket::connected(workers.address(i % 2)));
  RawSocket garbage = RawSocket::connected(workers.address(0));
  garbage.write(std::vector<std::byte>(1000, std::byte{0x47}));
  Outcomes outcomes = workers.form({0, 1});
  expect_group(outcomes, {0, 1});
}

// Regression: the others waited for this worker, and nothing said why.
TEST(ProcessGroups, SayThatTheyHaveNoDescriptors) {
  WorkerProcesses workers(1);
  workers.start(0);
  Warnings warnings;
  const testing::WithoutDescriptors few(1);  // for the end that asks
  const RawSocket asking = RawSocket::connected(workers.address(0));
  const Deadline deadline = Deadline::after(20s);
  while (warnings.text().empty() && !deadline.has_expired()) std::this_thread::yield();
  EXPECT_THAT(warnings.text(), HasSubstr("cannot accept connections of other workers"));
  EXPECT_THAT(warnings.text(), HasSubstr("limit of open files (ulimit -n)"));
}

TEST(ProcessGroups, SplitsOpenInAnyOrder) {
  WorkerProcesses workers(3);
  workers.start_all();
  Outcomes outcomes = workers.form({0, 1, 2});
  std::map<int, std::vector<std::shared_ptr<Group>>> splits;
  for (auto& [task, outcome] : outcomes) {
    ASSERT_FALSE(outcome.error);
    for (int i = 0; i < 4; ++i) splits[task].push_back(outcome.membership->group->split());
  }
  std::vector<std::thread> threads;
  for (const auto& [task, groups] : splits) {
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back([&groups = groups, i, task = task] {
        const std::size_t split = static_cast<std::size_t>((i + task) % 4);
        const auto all = groups[split]->exchange(one_byte(static_cast<int>(split)), "a byte",
                                                 Deadline::after(20s));
        EXPECT_EQ(all, std::vector<Bytes>(3, one_byte(static_cast<int>(split))));
      });
    }
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(ProcessGroups, NameAMemberThatDoesNotOpenLinks) {
  WorkerProcesses workers(3);
  workers.start_all();
  Outcomes outcomes = workers.form({0, 1, 2});
  EXPECT_THAT(
      [&] { outcomes.at(0).membership->group->exchange({}, "nothing", Deadline::after(100ms)); },
      throws_error(ErrorCode::deadline_exceeded, "worker:1"));
  workers.end(2);
  workers.end(0);
  EXPECT_THAT(
      [&] { outcomes.at(1).membership->group->exchange({}, "nothing", Deadline::after(20s)); },
      throws_error(ErrorCode::unavailable, "its process has ended"));
}

}  // namespace
}  // namespace cohort::collective
