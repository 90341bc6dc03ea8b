// SPDX-License-Identifier: Apache-2.0
#include "cohort/coordinator/queue/sent_closures.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

#include "cohort/testing/test_seed.h"

namespace cohort::coordinator::internal {
namespace {

TEST(SentClosures, KnowsWhatWasNotSent) {
  SentClosures sent;
  EXPECT_FALSE(sent.may_have(0));
  EXPECT_FALSE(sent.may_have(1));
  sent.add(5);
  sent.add(9);
  sent.add(7);
  for (const std::uint64_t id : {5, 7, 9}) EXPECT_TRUE(sent.may_have(id)) << id;
  for (const std::uint64_t id : {0, 4, 6, 8, 10}) EXPECT_FALSE(sent.may_have(id)) << id;
  sent.clear();
  EXPECT_FALSE(sent.may_have(7));
}

TEST(SentClosures, ForgetsOnlyTheOldest) {
  SentClosures sent;
  std::set<std::uint64_t> all;
  const testing::TestSeed seed(3);
  std::mt19937_64 random(seed.value());
  std::uint64_t newest = 0;
  for (int i = 0; i < 40'000; ++i) {
    const std::uint64_t id =
        random() % 8 == 0 && newest > 40 ? newest - random() % 40 : newest + 1 + random() % 5;
    newest = std::max(newest, id);
    sent.add(id);
    all.insert(id);
  }
  for (std::uint64_t id = 0; id <= newest + 10; ++id) {
    const bool is_remembered = newest < id || newest - id < (1 << 14);
    EXPECT_EQ(sent.may_have(id), !is_remembered || all.contains(id)) << id;
  }
}

TEST(SentClosures, AGapForgetsAll) {
  SentClosures sent;
  sent.add(3);
  sent.add(std::uint64_t{1} << 40);
  EXPECT_FALSE(sent.may_have((std::uint64_t{1} << 40) - 1));
  EXPECT_TRUE(sent.may_have(3));
}

}  // namespace
}  // namespace cohort::coordinator::internal
