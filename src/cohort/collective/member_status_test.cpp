// SPDX-License-Identifier: Apache-2.0
// Somebody from outside asks workers how far they are.
#include "cohort/collective/member_status.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <thread>

#include "cohort/core/progress_bar.h"
#include "cohort/net/host_port.h"
#include "cohort/net/socket.h"
#include "cohort/testing/throws_error.h"

namespace cohort::collective {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;
using testing::throws_error;
using State = MemberProbe::State;

// A socket that listens at an address of its own; the kernel accepts connections.
struct Listening {
  std::string address = "127.0.0.1:0";
  std::vector<FileDescriptor> sockets = net::listen_on_all(address);
};

class MemberStatusTest : public ::testing::Test {
 protected:
  // An address at which nobody listens after this.
  static std::string free_address() { return Listening().address; }
  MemberProbe probe(const std::string& name, const std::string& address, const std::string& job,
                    Duration timeout = 60s) {
    return probe_members({{name, address}}, job, Deadline::after(timeout)).front();
  }

  std::string own_ = free_address();
  std::string other_ = free_address();
  ProcessGroups worker_{
      {.tasks = {{"worker:0", other_}, {"worker:1", own_}}, .self = 1, .job = "a job"}};
};

TEST_F(MemberStatusTest, AWorkerTellsHowFarItIs) {
  ProgressMeter::of_process().note_step();
  const std::uint64_t steps = ProgressMeter::of_process().progress().steps;
  ProgressBar({.steps = 50, .is_visible = false}).show(7, {{"loss", 0.25}});
  const MemberProbe found = probe("worker:1", own_, "a job");
  ASSERT_EQ(found.state, State::answers) << found.reason;
  EXPECT_EQ(found.status.task, "worker:1");
  EXPECT_NE(found.status.incarnation, 0U);
  EXPECT_EQ(found.status.group, 0U) << "it has been in none";
  EXPECT_FALSE(found.status.is_forming);
  EXPECT_EQ(found.status.progress.steps, steps);
  EXPECT_TRUE(found.status.progress.since_last_step);
  EXPECT_EQ(found.status.progress.program_step, 7);
  EXPECT_EQ(found.status.progress.program_steps, 50);
  EXPECT_THAT(found.status.progress.values, Contains(Pair("loss", 0.25)));
}

TEST_F(MemberStatusTest, AStrangerGetsNumbersWithoutNames) {
  ProgressBar({.steps = 50, .is_visible = false}).show(7, {{"loss", 0.25}});
  const MemberProbe found = probe("", own_, "");
  ASSERT_EQ(found.state, State::answers) << found.reason;
  EXPECT_EQ(found.status.task, "");
  EXPECT_EQ(found.status.progress.program_step, 7);
  EXPECT_THAT(found.status.progress.values, IsEmpty());
}

TEST_F(MemberStatusTest, OthersAreNamed) {
  const MemberProbe job = probe("worker:1", own_, "b job");
  EXPECT_EQ(job.state, State::stranger);
  EXPECT_THAT(job.reason, HasSubstr("a worker of another job answers"));
  const MemberProbe task = probe("worker:0", own_, "a job");
  EXPECT_EQ(task.state, State::stranger);
  EXPECT_THAT(task.reason, HasSubstr("worker:1 of this job answers at the address of worker:0"));
}

TEST_F(MemberStatusTest, AWorkerThatHasEndedListensNoMore) {
  const MemberProbe found = probe("worker:0", other_, "a job");
  EXPECT_EQ(found.state, State::nobody_listens);
  EXPECT_THAT(found.reason, AllOf(HasSubstr("nobody listens at"), HasSubstr(other_)));
}

// As one that is stopped: the kernel accepts, and no bytes come. The others are asked meanwhile.
TEST_F(MemberStatusTest, ASilentWorkerIsNamedAtTheDeadline) {
  const Listening silent;
  const auto found = probe_members({{"worker:0", silent.address}, {"worker:1", own_}}, "a job",
                                   Deadline::after(200ms));
  EXPECT_EQ(found[0].state, State::no_answer);
  EXPECT_THAT(found[0].reason, HasSubstr("did not answer before the deadline"));
  EXPECT_EQ(found[1].state, State::answers) << found[1].reason;
}

TEST_F(MemberStatusTest, AnotherProgramIsAStranger) {
  const Listening other;
  std::thread program([&] {
    pollfd connection{other.sockets.front().get(), POLLIN, 0};
    ASSERT_EQ(::poll(&connection, 1, 60'000), 1);
    const FileDescriptor socket(::accept(connection.fd, nullptr, nullptr));
    const std::string text = "HTTP/1.1 400 Bad Request\r\n\r\n";
    ::send(socket.get(), text.data(), text.size(), MSG_NOSIGNAL);
  });
  const MemberProbe found = probe("worker:0", other.address, "a job");
  program.join();
  EXPECT_EQ(found.state, State::stranger);
  EXPECT_THAT(found.reason, HasSubstr("no worker of a synchronous job of this version"));
}

TEST_F(MemberStatusTest, ANameWithoutAnAddressIsNotResolved) {
  const MemberProbe found = probe("worker:0", "no-such-host.invalid:4000", "a job", 5s);
  EXPECT_EQ(found.state, State::name_not_resolved) << found.reason;
}

TEST_F(MemberStatusTest, RefusesAnAddressWithoutAPort) {
  EXPECT_THAT([&] { probe("worker:0", "host", "a job"); },
              throws_error(ErrorCode::invalid_argument, "host"));
}

// A question of status must not count as one of a worker, which closes those of others.
TEST_F(MemberStatusTest, ManyQuestionsLeaveTheWorkerAnswering) {
  const std::vector<WorkerTask> many(100, WorkerTask{"worker:1", own_});
  for (const MemberProbe& found : probe_members(many, "a job", Deadline::after(60s)))
    EXPECT_EQ(found.state, State::answers) << found.reason;
}

}  // namespace
}  // namespace cohort::collective
