// SPDX-License-Identifier: Apache-2.0
// The seed of a random test. It is printed, and COHORT_SEED=n repeats a run.
//
//   const TestSeed seed;
//   std::mt19937 random(seed.value());
#pragma once

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <optional>
#include <random>
#include <string>

namespace cohort::testing {

// Failures name the seed while it exists. Used from the test's thread.
class TestSeed {
 public:
  // `otherwise`: the seed without COHORT_SEED; nullopt: a random one.
  explicit TestSeed(std::optional<unsigned> otherwise = std::nullopt)
      : value_(chosen(otherwise)), trace_(__FILE__, __LINE__, text()) {
    // Also for a test that crashes or never ends.
    std::printf("%s\n", text().c_str());
    std::fflush(stdout);
  }

  unsigned value() const { return value_; }
  std::string text() const { return "COHORT_SEED=" + std::to_string(value_); }

 private:
  static unsigned chosen(std::optional<unsigned> otherwise) {
    if (const char* given = std::getenv("COHORT_SEED"))
      return static_cast<unsigned>(std::strtoul(given, nullptr, 10));
    return otherwise ? *otherwise : std::random_device()();
  }

  unsigned value_;
  ::testing::ScopedTrace trace_;
};

}  // namespace cohort::testing
