// SPDX-License-Identifier: Apache-2.0
#include "cohort/parameter_server/store/key_index.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

namespace cohort::parameter_server {
namespace {

// Keys as users have them: small numbers, hashes, and multiples of powers of two, which differ in
// few bits.
std::int64_t key_of(std::mt19937_64& random) {
  const std::uint64_t number = random();
  switch (number % 3) {
    case 0:
      return static_cast<std::int64_t>(number >> 52);
    case 1:
      return static_cast<std::int64_t>((number >> 52) << 48);
    default:
      return static_cast<std::int64_t>(random());
  }
}

class KeyIndexTest : public ::testing::TestWithParam<std::size_t> {
 protected:
  void expect_same() {
    ASSERT_EQ(index.size(), expected.size());
    std::vector<std::int64_t> keys;
    for (const auto& [key, row] : expected) keys.push_back(key);
    std::size_t next = 0;
    index.find_all(keys, [&](std::size_t i, const KeyIndex::Entry* entry) {
      ASSERT_EQ(i, next++);
      ASSERT_NE(entry, nullptr) << keys[i];
      EXPECT_EQ(entry->key, keys[i]);
      EXPECT_EQ(entry->row, expected[keys[i]]);
    });
    EXPECT_EQ(next, keys.size());
    std::size_t in_parts = 0;
    for (std::size_t part = 0; part < index.num_parts(); ++part) in_parts += index.size_of(part);
    EXPECT_EQ(in_parts, index.size());
  }

  KeyIndex index{GetParam()};
  std::map<std::int64_t, std::uint32_t> expected;
};

TEST_P(KeyIndexTest, FindsWhatAMapFinds) {
  std::mt19937_64 random(7);
  for (int round = 0; round < 20; ++round) {
    for (int i = 0; i < 500; ++i) {
      const std::int64_t key = key_of(random);
      const auto row = static_cast<std::uint32_t>(random() % 1000);
      EXPECT_EQ(index.find(key) != nullptr, expected.contains(key));
      if (expected.contains(key)) continue;
      index.insert(key, row, 1);
      expected[key] = row;
    }
    expect_same();
    const std::size_t part = random() % index.num_parts();
    index.erase_if(part, [&](const KeyIndex::Entry& entry) {
      if (entry.row % 4 != 0) return false;
      EXPECT_EQ(expected.erase(entry.key), 1U);
      return true;
    });
    expect_same();
  }
}

INSTANTIATE_TEST_SUITE_P(Parts, KeyIndexTest, ::testing::Values(1, 4, 256));

TEST(KeyIndex, NeedsAtMost24BytesForEachOfAFewThousandKeys) {
  KeyIndex index(1);
  std::uint64_t most = 0;
  for (std::int64_t key = 0; key < 100'000; ++key) {
    index.insert(key * 1'000'003, 0, 0);
    if (key > 2000) most = std::max(most, index.bytes() * 10 / index.size());
  }
  EXPECT_LE(most, 240U);  // tenths of a byte
}

}  // namespace
}  // namespace cohort::parameter_server
