// SPDX-License-Identifier: Apache-2.0
#include "cohort/core/random.h"

#include <gtest/gtest.h>

#include <bit>
#include <set>

namespace cohort {
namespace {

TEST(MixSeed, DependsOnItsArgumentsAlone) {
  EXPECT_EQ(mix_seed(1, 2), mix_seed(1, 2));
  EXPECT_EQ(mix_seed(1, "a"), mix_seed(1, "a"));
}

// Recorded values. A change of them would change the shuffles, closure seeds and Initializer values
// of every program. (Weights of modules come from LibTorch's own generator.)
TEST(MixSeed, StaysWhatItWas) {
  EXPECT_EQ(mix_seed(0, std::uint64_t{0}), 12035550249420947055ULL);
  EXPECT_EQ(mix_seed(42, std::uint64_t{7}), 13553200262973777806ULL);
  EXPECT_EQ(mix_seed(42, "dense/kernel"), 3360905808949622960ULL);
}

TEST(MixSeed, TellsSeedAndStreamApart) {
  EXPECT_NE(mix_seed(1, 2), mix_seed(2, 1));
  EXPECT_NE(mix_seed(0, std::uint64_t{0}), mix_seed(0, ""));
  EXPECT_NE(mix_seed(1, "ab"), mix_seed(1, "ba"));
}

TEST(MixSeed, HasNoCollisionsAmongNeighbours) {
  std::set<std::uint64_t> seen;
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    for (std::uint64_t stream = 0; stream < 100; ++stream) seen.insert(mix_seed(seed, stream));
  }
  EXPECT_EQ(seen.size(), 10000U);
}

TEST(MixSeed, ChangesAboutHalfTheBitsForOneBitOfInput) {
  int changed = 0;
  for (int bit = 0; bit < 64; ++bit) {
    changed += std::popcount(mix_seed(9, 5) ^ mix_seed(9, 5 ^ (1ULL << bit)));
    changed += std::popcount(mix_seed(9, 5) ^ mix_seed(9 ^ (1ULL << bit), 5));
  }
  EXPECT_NEAR(changed / 128.0, 32.0, 3.0);
}

}  // namespace
}  // namespace cohort
