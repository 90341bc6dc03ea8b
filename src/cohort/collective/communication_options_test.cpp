// SPDX-License-Identifier: Apache-2.0
// The comment above a test names the rows of the specification.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>

#include "cohort/collective/group.h"
#include "cohort/testing/throws_error.h"

namespace cohort {
namespace {

using internal::packs_of;
using testing::throws_error;
using Implementation = CommunicationImplementation;
using Packs = std::vector<std::vector<std::int64_t>>;

TEST(CommunicationOptions, NamesOfImplementationsMayHaveAnyLetterCase) {
  EXPECT_EQ(communication_implementation("AUTO"), Implementation::automatic);
  EXPECT_EQ(communication_implementation("ring"), Implementation::ring);
  EXPECT_EQ(communication_implementation("Nccl"), Implementation::nccl);
  EXPECT_THAT([] { communication_implementation("foo"); },
              throws_error(ErrorCode::invalid_argument, "got \"foo\""));
}

// MWM-04
TEST(CommunicationOptions, AValueOutOfRangeIsRefusedByName) {
  CommunicationOptions().check();
  CommunicationOptions{.bytes_per_pack = 1024, .timeout = std::chrono::milliseconds(2500)}.check();
  EXPECT_THAT([] { CommunicationOptions{.bytes_per_pack = -1}.check(); },
              throws_error(ErrorCode::invalid_argument, "bytes_per_pack >= 0, got -1"));
  EXPECT_THAT([] { CommunicationOptions{.timeout = std::chrono::seconds(-2)}.check(); },
              throws_error(ErrorCode::invalid_argument, "a timeout >= 0, got -2 s"));
  EXPECT_THAT(
      [] { CommunicationOptions{.implementation = static_cast<Implementation>(7)}.check(); },
      throws_error(ErrorCode::invalid_argument, "got number 7"));
}

// MWM-05
TEST(CommunicationOptions, ACallsDefaultsDoNotReplaceWhatIsSet) {
  const CommunicationOptions set{.bytes_per_pack = 8,
                                 .timeout = std::chrono::seconds(5),
                                 .implementation = Implementation::ring};
  const CommunicationOptions kept = set.merged_with({});
  EXPECT_EQ(kept.bytes_per_pack, 8);
  EXPECT_EQ(kept.timeout, Duration(std::chrono::seconds(5)));
  EXPECT_EQ(kept.implementation, Implementation::ring);
  const CommunicationOptions other = CommunicationOptions().merged_with(set);
  EXPECT_EQ(other.bytes_per_pack, 8);
  EXPECT_EQ(other.timeout, set.timeout);
  EXPECT_EQ(other.implementation, Implementation::ring);
}

// RED-25
TEST(CommunicationOptions, APackEndsOnceItIsLargerThanTheLimit) {
  EXPECT_EQ(packs_of({4, 8, 4, 4}, 4), Packs({{4, 8}, {4, 4}}));
  EXPECT_EQ(packs_of({4, 4, 4, 4}, 8), Packs({{4, 4, 4}, {4}}));
  EXPECT_EQ(packs_of({4, 4, 4, 4}, 1), Packs({{4}, {4}, {4}, {4}}));
  EXPECT_EQ(packs_of({4, 4}, 0), Packs({{4, 4}}));
  EXPECT_EQ(packs_of({}, 4), Packs());
}

}  // namespace
}  // namespace cohort
