// SPDX-License-Identifier: Apache-2.0
#include "cohort/collective/group.h"

#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cohort/core/error.h"
#include "cohort/testing/on_workers.h"
#include "cohort/testing/test_seed.h"
#include "cohort/testing/throws_error.h"

namespace cohort::collective {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::on_workers;
using testing::throws_error;

class InProcessGroup : public ::testing::Test {
 protected:
  static Deadline soon() { return Deadline::after(std::chrono::milliseconds(20)); }
  static Deadline late() { return Deadline::after(std::chrono::seconds(60)); }
  static Bytes bytes(int value) { return {static_cast<std::byte>(value)}; }
};

TEST_F(InProcessGroup, EveryMemberGetsAllContributionsInOrder) {
  const InProcessWorkers workers(3);
  const auto results = on_workers<std::vector<Bytes>>(3, [&](int rank) {
    const auto group = workers.group(rank);
    EXPECT_EQ(group->rank(), rank);
    EXPECT_EQ(group->size(), 3);
    group->exchange(bytes(rank), "one", late());
    return group->exchange(bytes(10 + rank), "two", late());
  });
  for (const auto& all : results) EXPECT_THAT(all, ElementsAre(bytes(10), bytes(11), bytes(12)));
}

TEST_F(InProcessGroup, SplitsDoNotMix) {
  const InProcessWorkers workers(2);
  const auto results = on_workers<std::vector<Bytes>>(2, [&](int rank) {
    const auto group = workers.group(rank);
    const auto first = group->split();
    const auto second = group->split();
    const auto of_first = first->split();
    // Each worker uses them in an order of its own.
    std::vector<std::pair<Group*, int>> calls = {
        {group.get(), 1}, {first.get(), 2}, {second.get(), 3}, {of_first.get(), 4}};
    std::vector<Bytes> of_other(calls.size());
    std::vector<std::thread> threads;
    for (const std::pair<Group*, int>& call : calls) {
      threads.emplace_back([&of_other, call, rank] {
        of_other[static_cast<std::size_t>(call.second - 1)] =
            call.first->exchange(bytes(10 * rank + call.second), "test", late())[1 - rank];
      });
      if (rank == 0) threads.back().join();
    }
    for (std::thread& thread : threads) {
      if (thread.joinable()) thread.join();
    }
    return of_other;
  });
  EXPECT_THAT(results[0], ElementsAre(bytes(11), bytes(12), bytes(13), bytes(14)));
  EXPECT_THAT(results[1], ElementsAre(bytes(1), bytes(2), bytes(3), bytes(4)));
}

TEST_F(InProcessGroup, ADeadlineNamesTheMembersItWaitedFor) {
  const InProcessWorkers workers(3);
  const auto second = workers.group(1);
  const auto first = workers.group(0);
  EXPECT_THAT([&] { first->exchange({}, "the weather", soon()); },
              throws_error(ErrorCode::deadline_exceeded,
                           "the weather in time, got nothing from worker:1, worker:2"));
}

// Otherwise the worker whose deadline passed would stay a call ahead of the others.
TEST_F(InProcessGroup, AMissedDeadlineEndsTheSplitForAll) {
  const InProcessWorkers workers(2);
  const auto groups = std::pair(workers.group(0), workers.group(1));
  const auto first = groups.first->split();
  const auto second = groups.second->split();
  EXPECT_THAT([&] { first->exchange(bytes(1), "the weather", soon()); },
              throws_error(ErrorCode::deadline_exceeded, "worker:1"));
  for (int i = 0; i < 2; ++i) {
    EXPECT_THAT([&] { second->exchange(bytes(2), "the weather", late()); },
                throws_error(ErrorCode::aborted, "worker:0 has waited in vain for worker:1"));
    EXPECT_THAT([&] { first->exchange(bytes(3), "the news", late()); },
                throws_error(ErrorCode::aborted, "worker:0 has waited in vain for worker:1"));
  }
}

TEST_F(InProcessGroup, AMissedDeadlineWakesMembersThatStillWait) {
  const InProcessWorkers workers(3);
  const auto slow = workers.group(2);
  const auto errors = on_workers<std::string>(2, [&](int rank) -> std::string {
    const auto group = workers.group(rank);
    const auto split = group->split();
    try {
      split->exchange({}, "the weather", rank == 0 ? soon() : late());
    } catch (const Error& error) {
      return error.message();
    }
    return "none";
  });
  EXPECT_THAT(errors[0], HasSubstr("in time, got nothing from worker:2"));
  EXPECT_THAT(errors[1], HasSubstr("worker:0 has waited in vain for worker:2"));
}

TEST_F(InProcessGroup, ADestroyedMemberFailsTheCallsThatNeedIt) {
  const InProcessWorkers workers(2);
  const auto first = workers.group(0);
  const auto split = first->split();
  {
    // The split keeps its group alive.
    const auto of_second = workers.group(1)->split();
    EXPECT_THAT([&] { first->exchange({}, "the weather", soon()); },
                throws_error(ErrorCode::deadline_exceeded, "nothing from worker:1"));
  }
  EXPECT_THAT([&] { split->exchange({}, "the news", late()); },
              throws_error(ErrorCode::aborted, "expected worker:1 to take part in the news"));
}

TEST_F(InProcessGroup, ExchangeResultThrowsTheFirstErrorOnAll) {
  const InProcessWorkers workers(3);
  const auto errors = on_workers<std::string>(3, [&](int rank) -> std::string {
    const auto group = workers.group(rank);
    const auto make = [&]() -> Bytes {
      if (rank == 0) return bytes(1);
      throw Error(ErrorCode::data_loss, "bad " + std::to_string(rank));
    };
    try {
      exchange_result(*group, make, "test", late());
    } catch (const Error& error) {
      return error.origin() + " " + error.message();
    }
    return "none";
  });
  EXPECT_THAT(errors, ::testing::Each("worker:1 bad 1"));
}

// A member that reduces and one that exchanges bytes would take each other's memory for their own.
TEST_F(InProcessGroup, AnExchangeAndAReductionFailOnBoth) {
  const InProcessWorkers workers(2);
  const auto errors = on_workers<std::string>(2, [&](int rank) -> std::string {
    const auto group = workers.group(rank);
    const at::Tensor tensor = at::ones({1000});
    try {
      rank == 0 ? group->all_reduce(tensor, ReduceOp::sum, late())
                : void(group->exchange(bytes(1), "the weather", late()));
    } catch (const Error& error) {
      group->barrier(late());
      return error.message();
    }
    return "none";
  });
  EXPECT_THAT(errors, ::testing::Each(::testing::HasSubstr(
                          "in call 0, got all_reduce from worker:0 and exchange from worker:1")));
}

// Members give up and begin calls at the same moments. Each has new memory for each call and frees
// it at once, so that a sanitizer notices who uses it too late.
TEST_F(InProcessGroup, AMissedDeadlineLeavesNobodyWithTheMemoryOfOthers) {
  const testing::TestSeed seed;
  std::mt19937 random(seed.value());
  int num_ended = 0;
  for (int round = 0; round < 300; ++round) {
    const int size = 2 + round % 3;
    const InProcessWorkers workers(size);
    std::vector<std::shared_ptr<Group>> groups;
    std::vector<Duration> patience;
    for (int rank = 0; rank < size; ++rank) {
      groups.push_back(workers.group(rank));
      patience.push_back(std::chrono::microseconds(random() % 400));
    }
    const auto num_sums = on_workers<int>(size, [&](int rank) {
      const auto i = static_cast<std::size_t>(rank);
      int num_done = 0;
      try {
        for (; num_done < 20; ++num_done) {
          const at::Tensor tensor = at::full({300 * (1 + num_done % 8)}, 1 + rank);
          groups[i]->all_reduce(tensor, ReduceOp::sum, Deadline::after(patience[i]));
          EXPECT_EQ(tensor[-1].item().toInt(), size * (size + 1) / 2);
        }
      } catch (const Error& error) {
        EXPECT_TRUE(error.code() == ErrorCode::deadline_exceeded ||
                    error.code() == ErrorCode::aborted);
      }
      return num_done;
    });
    // All have the same results, whoever gives up.
    EXPECT_THAT(num_sums, ::testing::Each(num_sums[0]));
    num_ended += num_sums[0] < 20;
  }
  std::printf("%d of 300 groups ended\n", num_ended);
}

// A member may leave as soon as its call has returned, while the others are still in theirs.
TEST_F(InProcessGroup, AMemberThatLeavesAfterACallDoesNotFailIt) {
  for (int round = 0; round < 200; ++round) {
    const int size = 2 + round % 3;
    const InProcessWorkers workers(size);
    std::vector<std::shared_ptr<Group>> groups;
    for (int rank = 0; rank < size; ++rank) groups.push_back(workers.group(rank));
    const auto sums = on_workers<int>(size, [&](int rank) {
      std::shared_ptr<Group>& mine = groups[static_cast<std::size_t>(rank)];
      const at::Tensor tensor = at::full({round % 2 == 0 ? 8 : 5000}, 1 + rank);
      mine->all_reduce(tensor, ReduceOp::sum, late());
      mine.reset();
      return tensor[-1].item().toInt();
    });
    EXPECT_THAT(sums, ::testing::Each(size * (size + 1) / 2));
  }
}

TEST_F(InProcessGroup, ARankOutOfRangeIsRefused) {
  EXPECT_THAT([] { InProcessWorkers(0); }, throws_error(ErrorCode::invalid_argument, "got 0"));
  EXPECT_THAT([] { InProcessWorkers(2).group(2); },
              throws_error(ErrorCode::invalid_argument, "[0, 2), got 2"));
}

}  // namespace
}  // namespace cohort::collective
