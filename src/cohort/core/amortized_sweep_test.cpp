// SPDX-License-Identifier: Apache-2.0
#include "cohort/core/amortized_sweep.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <vector>

namespace cohort::internal {
namespace {

using Entries = std::vector<std::weak_ptr<int>>;

// How often entries are looked at while `count` are added, of which all stay alive.
std::size_t looks_for(std::size_t count) {
  AmortizedSweep sweep;
  Entries entries;
  std::vector<std::shared_ptr<int>> alive;
  std::size_t looks = 0;
  for (std::size_t i = 0; i < count; ++i) {
    sweep(entries, [&](const auto& each) {
      ++looks;
      return each.expired();
    });
    entries.push_back(alive.emplace_back(std::make_shared<int>(0)));
  }
  EXPECT_EQ(entries.size(), count);
  return looks;
}

TEST(AmortizedSweepTest, ItLooksAtEachLivingEntryAFewTimes) {
  EXPECT_LE(looks_for(1'000), 2 * 1'000U);
  EXPECT_LE(looks_for(10'000), 2 * 10'000U);
}

TEST(AmortizedSweepTest, WhatHasEndedDoesNotPileUp) {
  AmortizedSweep sweep;
  Entries entries;
  std::size_t most = 0;
  for (int i = 0; i < 1'000; ++i) {
    sweep(entries, [](const auto& each) { return each.expired(); });
    entries.push_back(std::make_shared<int>(0));
    most = std::max(most, entries.size());
  }
  EXPECT_LE(most, 16U);
}

}  // namespace
}  // namespace cohort::internal
