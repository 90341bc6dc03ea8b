// SPDX-License-Identifier: Apache-2.0
// Workers that others cannot reach, or have given up: at most one group goes on after a loss.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <optional>
#include <thread>
#include <vector>

#include "cohort/collective/process_groups.h"
#include "cohort/core/error.h"
#include "cohort/testing/throws_error.h"
#include "cohort/testing/worker_processes.h"

namespace cohort::collective {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::ElementsAre;
using testing::expect_group;
using ::testing::HasSubstr;
using testing::throws_error;
using testing::WorkerProcesses;
using Outcomes = WorkerProcesses::Outcomes;

// One worker is missed by the others while it does nothing.
class AGivenUpMember : public ::testing::TestWithParam<GroupBackend> {
 protected:
  AGivenUpMember() : workers(3) {
    for (int task = 0; task < 3; ++task) {
      ProcessGroupOptions options = workers.options(task);
      options.backend = GetParam();
      workers.start(options);
    }
    first = workers.form({0, 1, 2});
    expect_group(first, {0, 1, 2});
    std::vector<std::thread> threads;
    for (const int task : {0, 1}) {
      threads.emplace_back([&, task] {
        EXPECT_THROW(
            first.at(task).membership->group->exchange({}, "nothing", Deadline::after(50ms)),
            Error);
      });
    }
    for (std::thread& thread : threads) thread.join();
    second = workers.form({0, 1});
    expect_group(second, {0, 1});
  }
  void end_others() {
    for (const int task : {0, 1}) {
      second.at(task).membership->group.reset();
      workers.end(task);
    }
  }
  void expect_given_up() {
    const Outcomes alone = workers.form({2}, 60s);
    ASSERT_TRUE(alone.at(2).error) << "it trains alone";
    EXPECT_EQ(alone.at(2).error->code(), ErrorCode::unavailable);
    EXPECT_EQ(alone.at(2).error->cause(), ErrorCause::must_restart);
    // The group that they formed is heard of first, or the loss that they blamed it for.
    EXPECT_THAT(alone.at(2).error->message(), HasSubstr("they have ended"));
    EXPECT_EQ(exit_code_of(*alone.at(2).error), 75);
  }
  WorkerProcesses workers;
  Outcomes first;
  Outcomes second;
};

// Regression: it trained alone, and replaced what they had saved.
TEST_P(AGivenUpMember, DoesNotGoOnAloneAfterTheOthersHaveEnded) {
  end_others();
  EXPECT_THAT([&] { first.at(2).membership->group->exchange({}, "nothing", Deadline::after(20s)); },
              throws_error(ErrorCode::aborted, "in vain"));
  expect_given_up();
}

TEST_P(AGivenUpMember, KnowsItAlsoWithoutACall) {
  end_others();
  expect_given_up();
}

TEST_P(AGivenUpMember, JoinsThoseWhoHaveGivenItUp) {
  std::thread late([&] { EXPECT_FALSE(workers.form({2}).at(2).error); });
  Outcomes third;
  const Deadline deadline = Deadline::after(20s);
  do {
    third = workers.form({0, 1});
    ASSERT_FALSE(third.at(0).error);
  } while (third.at(0).membership->tasks.size() < 3 && !deadline.has_expired());
  late.join();
  EXPECT_THAT(third.at(0).membership->is_new, ElementsAre(false, false, true));
}

INSTANTIATE_TEST_SUITE_P(Backends, AGivenUpMember,
                         ::testing::Values(GroupBackend::tcp, GroupBackend::shared_memory),
                         [](const auto& instance) {
                           return instance.param == GroupBackend::tcp ? "tcp" : "shared_memory";
                         });

// There are two workers.
TEST(ProcessGroups, GoOnAloneIfTheOtherHasEnded) {
  for (const int ended : {0, 1}) {
    WorkerProcesses workers(2);
    workers.start_all();
    Outcomes first = workers.form({0, 1});
    expect_group(first, {0, 1});
    workers.end(ended);
    Outcomes second = workers.form({1 - ended});
    expect_group(second, {1 - ended});
    workers.start(ended);
    Outcomes third = workers.form({0, 1});
    expect_group(third, {0, 1});
    EXPECT_EQ(third.at(0).membership->survivor, 1 - ended);
  }
}

// Regression: of two sides of a network, the first worker went on and ended. When the network was
// whole again, the other one found that it had ended, and went on from older values.
TEST(ProcessGroups, DoNotGoOnWithoutOneThatEndedAfterItWasSilent) {
  WorkerProcesses workers(2);
  workers.start_all();
  Outcomes first = workers.form({0, 1});
  expect_group(first, {0, 1});
  workers.end(0);
  {
    const FileDescriptor listener = testing::silent_listener(workers.address(0));
    ASSERT_TRUE(workers.form({1}, 2s).at(1).error);
  }
  const std::optional<Error> error = workers.form({1}, 2s).at(1).error;
  ASSERT_TRUE(error);
  EXPECT_EQ(error->cause(), ErrorCause::must_restart);
  // A process that starts again at its address has no values.
  workers.start(0);
  Outcomes again = workers.form({0, 1});
  expect_group(again, {0, 1});
  EXPECT_EQ(again.at(0).membership->survivor, 1);
}

// Its address accepts connections, so it may have stopped, and go on later.
TEST(ProcessGroups, GoOnAloneWithoutOneThatMayLiveOnlyAsTheFirst) {
  for (const int silent : {0, 1}) {
    WorkerProcesses workers(2);
    workers.start_all();
    Outcomes first = workers.form({0, 1});
    expect_group(first, {0, 1});
    workers.end(silent);
    const FileDescriptor listener = testing::silent_listener(workers.address(silent));
    const Outcomes second = workers.form({1 - silent}, 2s);
    const std::optional<Error>& error = second.at(1 - silent).error;
    ASSERT_EQ(error.has_value(), silent == 0);
    if (!error) continue;
    EXPECT_EQ(error->code(), ErrorCode::unavailable);
    EXPECT_EQ(error->cause(), ErrorCause::must_restart);
    EXPECT_THAT(error->message(),
                AllOf(HasSubstr("too few without worker:0 (" + workers.address(0)),
                      HasSubstr("MultiWorkerMirroredOptions::allow_minority")));
  }
}

}  // namespace
}  // namespace cohort::collective
