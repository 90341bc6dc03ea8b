// SPDX-License-Identifier: Apache-2.0
// A worker that has another job, backend, list of workers or options is in no group.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "cohort/collective/process_groups.h"
#include "cohort/core/error.h"
#include "cohort/core/log.h"
#include "cohort/testing/throws_error.h"
#include "cohort/testing/warnings.h"
#include "cohort/testing/worker_processes.h"

namespace cohort::collective {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using testing::expect_group;
using ::testing::HasSubstr;
using testing::throws_error;
using testing::Warnings;
using testing::WorkerProcesses;
using Outcomes = WorkerProcesses::Outcomes;

// Regression: they waited until the deadline for connections of each other.
TEST(DifferentWorker, IsRefusedForItsBackend) {
  WorkerProcesses workers(2);
  workers.start(0);
  ProcessGroupOptions other = workers.options(1);
  other.backend = GroupBackend::shared_memory;
  workers.start(other);
  Outcomes outcomes = workers.form({0, 1});
  for (const int task : {0, 1}) {
    ASSERT_TRUE(outcomes.at(task).error);
    EXPECT_THAT(outcomes.at(task).error->message(),
                HasSubstr(task == 0 ? "a worker with GroupBackend::tcp, got "
                                    : "a worker with GroupBackend::shared_memory, got "));
  }
}

TEST(DifferentWorker, IsRefusedForItsJob) {
  WorkerProcesses workers(2);
  workers.start(0);
  ProcessGroupOptions other = workers.options(1);
  other.job = "other";
  workers.start(other);
  Outcomes outcomes = workers.form({0, 1});
  for (const int task : {0, 1}) {
    ASSERT_TRUE(outcomes.at(task).error);
    EXPECT_EQ(outcomes.at(task).error->code(), ErrorCode::failed_precondition);
    EXPECT_THAT(outcomes.at(task).error->message(),
                HasSubstr("got one of another job; give all workers the same cluster"));
  }
}

// Regression: one that had started again with other options came into the group, and all failed.
TEST(DifferentWorker, IsRefusedForItsOptions) {
  WorkerProcesses workers(2);
  workers.start_all();
  Outcomes first = workers.form({0, 1});
  expect_group(first, {0, 1});
  workers.end(1);
  ProcessGroupOptions other = workers.options(1);
  other.options = "2 replicas";
  workers.start(other);
  Warnings warnings;
  Outcomes outcomes = workers.form({0, 1});
  expect_group(outcomes, {0});
  // The one that asks first hears it from the other.
  EXPECT_THAT(warnings.text(),
              ::testing::AnyOf(
                  AllOf(HasSubstr("refused a process that takes part as worker:1: "),
                        HasSubstr("the options 'none', got '2 replicas'")),
                  AllOf(HasSubstr("worker:1 (" + workers.address(1) + ") refuses this process: "),
                        HasSubstr("the options '2 replicas', got 'none'"))));
  ASSERT_TRUE(outcomes.at(1).error);
  EXPECT_EQ(outcomes.at(1).error->code(), ErrorCode::failed_precondition);
  EXPECT_EQ(outcomes.at(1).error->origin(), "worker:0");
  EXPECT_THAT(
      outcomes.at(1).error->message(),
      AllOf(HasSubstr("the options '2 replicas', got 'none'"), HasSubstr(workers.address(0))));
}

TEST(DifferentWorker, IsRefusedForItsListOfWorkers) {
  WorkerProcesses workers(3);
  workers.start(0);
  ProcessGroupOptions other = workers.options(1);
  other.tasks.pop_back();
  workers.start(other);
  Outcomes outcomes = workers.form({0, 1});
  for (const int task : {0, 1}) {
    ASSERT_TRUE(outcomes.at(task).error);
    EXPECT_EQ(outcomes.at(task).error->code(), ErrorCode::failed_precondition);
    EXPECT_THAT(outcomes.at(task).error->message(), HasSubstr("the same list of workers"));
    EXPECT_THAT(outcomes.at(task).error->message(), HasSubstr("worker:2 " + workers.address(2)));
  }
}

// A line of the log with these words, at any level.
class AwaitedLine {
 public:
  explicit AwaitedLine(std::string words) {
    set_log_level(LogLevel::debug);
    set_log_sink([this, words = std::move(words)](LogLevel, std::string_view line) {
      if (line.find(words) == std::string_view::npos) return;
      has_come_ = true;
      has_come_.notify_all();
    });
  }
  ~AwaitedLine() {
    set_log_sink(nullptr);
    set_log_level(LogLevel::warn);
  }
  AwaitedLine(const AwaitedLine&) = delete;
  AwaitedLine& operator=(const AwaitedLine&) = delete;
  void wait() { has_come_.wait(false); }

 private:
  std::atomic<bool> has_come_ = false;
};

// Regression: the one that differed ended as soon as one had refused it, and the others waited.
TEST(DifferentWorker, IsKnownToAllWhoeverComesLast) {
  for (const bool swaps : {false, true}) {
    for (const int different : {0, 1, 2}) {
      SCOPED_TRACE(std::to_string(different) +
                   (swaps ? " has another order" : " has other options"));
      WorkerProcesses workers(3);
      ProcessGroupOptions other = workers.options(different);
      if (swaps) {
        std::swap(other.tasks[static_cast<std::size_t>((different + 1) % 3)].address,
                  other.tasks[static_cast<std::size_t>((different + 2) % 3)].address);
      } else {
        other.options = "2 replicas";
      }
      std::vector<std::thread> waiting;
      std::atomic<int> told = 0;
      // It asks only the one that leads, so it does not meet the one that differs.
      AwaitedLine line("joins task");
      const std::vector<int> alike = {(different + 1) % 3, (different + 2) % 3};
      for (const int task : alike) workers.start(task);
      for (const int task : alike) {
        waiting.emplace_back([&, task] {
          const Outcomes outcomes = workers.form({task}, 60s);
          if (!outcomes.at(task).error) return;
          EXPECT_EQ(outcomes.at(task).error->code(), ErrorCode::failed_precondition)
              << task << ": " << outcomes.at(task).error->what();
          ++told;
        });
      }
      line.wait();
      {
        ProcessGroups late(other);
        EXPECT_THAT([&] { late.form(Deadline::after(60s)); },
                    throws_error(ErrorCode::failed_precondition, "expected"));
      }
      for (std::thread& thread : waiting) thread.join();
      EXPECT_EQ(told, 2);
    }
  }
}

// Regression: a worker that the list of the different one does not have waited for it.
TEST(DifferentWorker, IsKnownToAWorkerThatItsListDoesNotHave) {
  for (const int unknown : {1, 2}) {
    SCOPED_TRACE(unknown);
    WorkerProcesses workers(3);
    ProcessGroupOptions other = workers.options(0);
    other.tasks[static_cast<std::size_t>(unknown)].address = "127.0.0.1:1";
    for (const int task : {1, 2}) workers.start(task);
    AwaitedLine line("joins task");
    Outcomes outcomes;
    std::thread waiting([&] { outcomes = workers.form({1, 2}, 60s); });
    line.wait();
    {
      ProcessGroups late(other);
      EXPECT_THAT([&] { late.form(Deadline::after(60s)); },
                  throws_error(ErrorCode::failed_precondition, "the same list of workers"));
    }
    waiting.join();
    for (const int task : {1, 2}) {
      ASSERT_TRUE(outcomes.at(task).error);
      EXPECT_EQ(outcomes.at(task).error->code(), ErrorCode::failed_precondition);
      EXPECT_EQ(outcomes.at(task).error->origin(), "worker:0");
      EXPECT_THAT(outcomes.at(task).error->message(),
                  AllOf(HasSubstr("worker:" + std::to_string(unknown) + " 127.0.0.1:1"),
                        HasSubstr("(worker:0 (" + workers.address(0))));
    }
  }
}

// Regression: a worker that began to listen when the others had just ended waited for them. On a
// busy machine it may be too late at the first attempt.
TEST(DifferentWorker, IsKnownToOneThatComesAMomentLater) {
  bool is_known = false;
  for (int attempt = 0; attempt < 10 && !is_known; ++attempt) {
    WorkerProcesses workers(3);
    ProcessGroupOptions other = workers.options(0);
    other.options = "2 replicas";
    workers.start(1);
    AwaitedLine line("expected a worker with the options");
    std::optional<Error> first;
    std::thread waiting([&] { first = workers.form({1}, 60s).at(1).error; });
    std::thread differing([&] {
      ProcessGroups different(other);
      EXPECT_THAT([&] { different.form(Deadline::after(60s)); },
                  throws_error(ErrorCode::failed_precondition, "options"));
    });
    line.wait();
    ProcessGroups late(workers.options(2));
    try {
      late.form(Deadline::after(5s));
    } catch (const Error& error) {
      is_known = error.code() == ErrorCode::failed_precondition;
    }
    waiting.join();
    differing.join();
    ASSERT_TRUE(first);
    EXPECT_EQ(first->code(), ErrorCode::failed_precondition);
  }
  EXPECT_TRUE(is_known);
}

// Regression: those who were asked first waited until their deadline, and named who was missing.
TEST(DifferentWorker, IsKnownToTheOneThatRefusesIt) {
  for (const int first : {0, 1}) {
    WorkerProcesses workers(2);
    ProcessGroupOptions other = workers.options(1);
    other.options = "1 replica, overlaps_communication";
    ProcessGroupOptions one = workers.options(0);
    one.options = "1 replica";
    workers.start(one);
    workers.start(other);
    std::thread waiting([&] {
      const Outcomes outcomes = workers.form({first}, 60s);
      ASSERT_TRUE(outcomes.at(first).error);
      EXPECT_EQ(outcomes.at(first).error->code(), ErrorCode::failed_precondition);
      EXPECT_THAT(outcomes.at(first).error->message(), HasSubstr("'overlaps_communication'"));
    });
    const Outcomes outcomes = workers.form({1 - first}, 60s);
    waiting.join();
    ASSERT_TRUE(outcomes.at(1 - first).error);
    EXPECT_THAT(outcomes.at(1 - first).error->message(), HasSubstr("'overlaps_communication'"));
  }
}

}  // namespace
}  // namespace cohort::collective
