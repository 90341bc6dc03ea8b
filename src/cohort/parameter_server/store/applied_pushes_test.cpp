// SPDX-License-Identifier: Apache-2.0
#include "cohort/parameter_server/store/applied_pushes.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

namespace cohort::parameter_server {
namespace {

using Verdict = AppliedPushes::Verdict;

rpc::PushId push(std::uint64_t number, std::uint32_t segment = 0) {
  return {.number = number, .segment = segment};
}

TEST(AppliedPushes, AppliesEachClosureOnce) {
  AppliedPushes applied;
  ASSERT_EQ(applied.begin(push(7), 1), Verdict::apply);
  applied.finish(push(7));
  EXPECT_EQ(applied.begin(push(7), 1), Verdict::applied_before);
  EXPECT_EQ(applied.begin(push(8), 1), Verdict::apply);
}

TEST(AppliedPushes, AppliesEachSegmentOnce) {
  AppliedPushes applied;
  ASSERT_EQ(applied.begin(push(7, 0), 1), Verdict::apply);
  applied.finish(push(7, 0));
  EXPECT_EQ(applied.begin(push(7, 1), 1), Verdict::apply);
  applied.forget(push(7, 1));
  EXPECT_EQ(applied.begin(push(7, 0), 1), Verdict::applied_before);
  EXPECT_EQ(applied.begin(push(7, 1), 1), Verdict::apply) << "a retry goes on where it failed";
  EXPECT_EQ(applied.begin(push(7, 2), 8), Verdict::retired);
}

TEST(AppliedPushes, DropsWhatComesBelowTheWatermark) {
  AppliedPushes applied;
  EXPECT_EQ(applied.begin(push(20), 15), Verdict::apply);
  EXPECT_EQ(applied.begin(push(14), 3), Verdict::retired)
      << "an older message must not lower the watermark";
}

TEST(AppliedPushes, MayBeTriedAgainAfterAFailure) {
  AppliedPushes applied;
  ASSERT_EQ(applied.begin(push(3), 0), Verdict::apply);
  applied.forget(push(3));
  EXPECT_EQ(applied.begin(push(3), 0), Verdict::apply);
}

TEST(AppliedPushes, ForgetsRetiredClosures) {
  AppliedPushes applied;
  for (std::uint64_t id = 1; id <= 10'000; ++id) {
    ASSERT_EQ(applied.begin(push(id), id > 4 ? id - 4 : 0), Verdict::apply);
    applied.finish(push(id));
  }
  EXPECT_LT(applied.record().at(0).applied.size(), 2'000U);
}

TEST(AppliedPushes, EachOriginHasItsOwnNumbers) {
  AppliedPushes applied;
  ASSERT_EQ(applied.begin(push(7), 7), Verdict::apply);
  applied.finish(push(7));
  const rpc::PushId other{.origin = 2, .number = 7};
  EXPECT_EQ(applied.begin(other, 1), Verdict::apply);
  EXPECT_EQ(applied.begin({.origin = 2, .number = 6}, 1), Verdict::apply)
      << "the watermark of another origin says nothing";
}

TEST(AppliedPushes, ALaterStartOfAnOriginBeginsAgainAndEndsTheEarlierOne) {
  AppliedPushes applied;
  const rpc::PushId before{.incarnation = 5, .number = 7};
  const rpc::PushId after{.incarnation = 4, .number = 7};
  ASSERT_EQ(applied.begin(before, 1), Verdict::apply);
  ASSERT_EQ(applied.begin(after, 1), Verdict::apply) << "it does not wait for the earlier start";
  applied.finish(before);
  applied.finish(after);
  EXPECT_EQ(applied.begin(after, 1), Verdict::applied_before);
  EXPECT_EQ(applied.begin({.incarnation = 5, .number = 8}, 1), Verdict::retired) << "it comes late";
}

TEST(AppliedPushes, KnowWhatAnotherServerHasApplied) {
  AppliedPushes from, to;
  ASSERT_EQ(from.begin({.incarnation = 1, .number = 7}, 3), Verdict::apply);
  from.finish({.incarnation = 1, .number = 7});
  to.merge(from.record());
  EXPECT_EQ(to.begin({.incarnation = 1, .number = 7}, 3), Verdict::applied_before);
  EXPECT_EQ(to.begin({.incarnation = 1, .number = 2}, 0), Verdict::retired);
  EXPECT_EQ(to.begin({.incarnation = 1, .number = 8}, 3), Verdict::apply);
}

TEST(AppliedPushes, ARecordOfAnEarlierStartSaysNothingOfTheLaterOne) {
  AppliedPushes first, later;
  ASSERT_EQ(first.begin({.incarnation = 1, .number = 7}, 1), Verdict::apply);
  first.finish({.incarnation = 1, .number = 7});
  const std::vector<rpc::AppliedRecord> of_first = first.record();
  ASSERT_EQ(later.begin({.incarnation = 2, .number = 7}, 1), Verdict::apply);
  later.finish({.incarnation = 2, .number = 7});
  later.merge(of_first);
  EXPECT_EQ(later.begin({.incarnation = 2, .number = 8}, 1), Verdict::apply);
  // The other way round, the earlier start ends.
  ASSERT_EQ(first.begin({.incarnation = 2, .number = 9}, 1), Verdict::apply);
  first.finish({.incarnation = 2, .number = 9});
  AppliedPushes third;
  third.merge(of_first);
  third.merge(first.record());
  EXPECT_EQ(third.begin({.incarnation = 2, .number = 9}, 1), Verdict::applied_before);
  EXPECT_EQ(third.begin({.incarnation = 1, .number = 8}, 1), Verdict::retired);
}

TEST(AppliedPushes, OneOfManyThreadsApplies) {
  AppliedPushes applied;
  std::atomic<int> count{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] {
      for (std::uint64_t id = 1; id <= 200; ++id) {
        if (applied.begin(push(id), 0) != Verdict::apply) continue;
        ++count;
        applied.finish(push(id));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(count, 200);
}

}  // namespace
}  // namespace cohort::parameter_server
