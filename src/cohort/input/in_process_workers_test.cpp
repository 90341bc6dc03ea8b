// SPDX-License-Identifier: Apache-2.0
#include "cohort/input/in_process_workers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cohort/input/internal/input_fixture.h"
#include "cohort/testing/throws_error.h"

namespace cohort::input {
namespace {

using ::testing::ElementsAre;
using testing::throws_error;

class Agreement : public ::testing::Test {
 protected:
  static Deadline soon() { return Deadline::after(std::chrono::milliseconds(20)); }
  static Deadline late() { return Deadline::after(std::chrono::seconds(60)); }
  static Bytes bytes(int value) { return {static_cast<std::byte>(value)}; }
};

TEST_F(Agreement, EveryWorkerHearsAllInOrder) {
  const InProcessWorkers workers(3);
  const auto heard = on_workers<std::vector<Bytes>>(3, [&](int worker) {
    const auto group = workers.group(worker);
    const auto talk = group->start("test");
    talk->exchange(bytes(worker), "one", late());
    return talk->exchange(bytes(10 + worker), "two", late());
  });
  for (const auto& all : heard) EXPECT_THAT(all, ElementsAre(bytes(10), bytes(11), bytes(12)));
}

TEST_F(Agreement, TwoConversationsDoNotMix) {
  const InProcessWorkers workers(2);
  const auto heard = on_workers<int>(2, [&](int worker) {
    const auto group = workers.group(worker);
    const auto first = group->start("first");
    const auto second = group->start("second");
    const StepVerdict of_first = first->vote({.components = 1}, late());
    const StepVerdict of_second = second->vote({.components = 10}, late());
    return static_cast<int>(of_first.components + 100 * of_second.components);
  });
  EXPECT_THAT(heard, ElementsAre(2002, 2002));
}

TEST_F(Agreement, VotesAddUpAndTheFirstErrorCounts) {
  const InProcessWorkers workers(3);
  const auto origins = on_workers<std::string>(3, [&](int worker) {
    const auto group = workers.group(worker);
    StepVote mine{.components = 1, .examples = worker};
    if (worker > 0) {
      mine.error = Error(ErrorCode::data_loss, "bad " + std::to_string(worker)).during("reading");
    }
    const StepVerdict verdict = group->start("test")->vote(mine, late());
    EXPECT_EQ(verdict.examples, 3);
    EXPECT_THAT(verdict.error->context(), ElementsAre("reading"));
    return verdict.error->origin() + " " + verdict.error->message();
  });
  for (const std::string& origin : origins) EXPECT_EQ(origin, "worker:1 bad 1");
}

TEST_F(Agreement, ADeadlineNamesWhomItWaitedFor) {
  const InProcessWorkers workers(3);
  const auto second = workers.group(1);
  const auto talk = workers.group(0)->start("test");
  EXPECT_THAT([&] { talk->exchange({}, "the weather", soon()); },
              throws_error(ErrorCode::deadline_exceeded,
                           "the weather in time, got nothing from worker:1, worker:2"));
}

// Otherwise the worker whose deadline passed would stay a round ahead of the others.
TEST_F(Agreement, AMissedDeadlineEndsTheConversationForAll) {
  const InProcessWorkers workers(2);
  const auto groups = std::pair(workers.group(0), workers.group(1));
  const auto first = groups.first->start("test");
  const auto second = groups.second->start("test");
  EXPECT_THAT([&] { first->exchange(bytes(1), "the weather", soon()); },
              throws_error(ErrorCode::deadline_exceeded, "worker:1"));
  for (int i = 0; i < 2; ++i) {
    EXPECT_THAT([&] { second->exchange(bytes(2), "the weather", late()); },
                throws_error(ErrorCode::aborted, "worker:0 has waited in vain for worker:1"));
    EXPECT_THAT([&] { first->exchange(bytes(3), "the news", late()); },
                throws_error(ErrorCode::aborted, "worker:0 has waited in vain for worker:1"));
  }
}

TEST_F(Agreement, AWorkerThatStillWaitsHearsOfAMissedDeadline) {
  const InProcessWorkers workers(3);
  const auto slow = workers.group(2);
  const auto codes = on_workers<std::string>(2, [&](int worker) -> std::string {
    const auto group = workers.group(worker);
    const auto talk = group->start("test");
    try {
      talk->exchange({}, "the weather", worker == 0 ? soon() : late());
    } catch (const Error& error) {
      return std::string(name_of(error.code()));
    }
    return "none";
  });
  EXPECT_EQ(codes[0], "deadline_exceeded");
  EXPECT_EQ(codes[1], "aborted");
}

TEST_F(Agreement, AWorkerOutOfRangeIsRefused) {
  EXPECT_THAT([] { InProcessWorkers(0); }, throws_error(ErrorCode::invalid_argument, "got 0"));
  EXPECT_THAT([] { InProcessWorkers(2).group(2); },
              throws_error(ErrorCode::invalid_argument, "[0, 2), got 2"));
}

}  // namespace
}  // namespace cohort::input
