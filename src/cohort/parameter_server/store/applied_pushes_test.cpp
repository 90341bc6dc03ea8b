// SPDX-License-Identifier: Apache-2.0
#include "cohort/parameter_server/store/applied_pushes.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

namespace cohort::parameter_server {
namespace {

using Verdict = AppliedPushes::Verdict;

TEST(AppliedPushes, AppliesEachClosureOnce) {
  AppliedPushes applied;
  ASSERT_EQ(applied.begin({7}, 1), Verdict::apply);
  applied.finish({7});
  EXPECT_EQ(applied.begin({7}, 1), Verdict::applied_before);
  EXPECT_EQ(applied.begin({8}, 1), Verdict::apply);
}

TEST(AppliedPushes, AppliesEachSegmentOnce) {
  AppliedPushes applied;
  ASSERT_EQ(applied.begin({7, 0}, 1), Verdict::apply);
  applied.finish({7, 0});
  EXPECT_EQ(applied.begin({7, 1}, 1), Verdict::apply);
  applied.forget({7, 1});
  EXPECT_EQ(applied.begin({7, 0}, 1), Verdict::applied_before);
  EXPECT_EQ(applied.begin({7, 1}, 1), Verdict::apply) << "a retry goes on where it failed";
  EXPECT_EQ(applied.begin({7, 2}, 8), Verdict::retired);
}

TEST(AppliedPushes, DropsWhatComesBelowTheWatermark) {
  AppliedPushes applied;
  EXPECT_EQ(applied.begin({20}, 15), Verdict::apply);
  EXPECT_EQ(applied.begin({14}, 3), Verdict::retired)
      << "an older message must not lower the watermark";
}

TEST(AppliedPushes, MayBeTriedAgainAfterAFailure) {
  AppliedPushes applied;
  ASSERT_EQ(applied.begin({3}, 0), Verdict::apply);
  applied.forget({3});
  EXPECT_EQ(applied.begin({3}, 0), Verdict::apply);
}

TEST(AppliedPushes, ForgetsRetiredClosures) {
  AppliedPushes applied;
  for (std::uint64_t id = 1; id <= 10'000; ++id) {
    ASSERT_EQ(applied.begin({id}, id > 4 ? id - 4 : 0), Verdict::apply);
    applied.finish({id});
  }
  EXPECT_LT(applied.remembered(), 2'000U);
}

TEST(AppliedPushes, OneOfManyThreadsApplies) {
  AppliedPushes applied;
  std::atomic<int> count{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] {
      for (std::uint64_t id = 1; id <= 200; ++id) {
        if (applied.begin({id}, 0) != Verdict::apply) continue;
        ++count;
        applied.finish({id});
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(count, 200);
}

}  // namespace
}  // namespace cohort::parameter_server
