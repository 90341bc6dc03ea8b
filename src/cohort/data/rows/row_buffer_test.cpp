// SPDX-License-Identifier: Apache-2.0
#include "cohort/data/rows/row_buffer.h"

#include <gtest/gtest.h>

#include <numeric>

namespace cohort::data {
namespace {

std::vector<std::int64_t> numbers(std::size_t count) {
  std::vector<std::int64_t> rows(count);
  std::iota(rows.begin(), rows.end(), 0);
  return rows;
}

TEST(RowBuffer, HasTheRowsInTheirOrder) {
  const std::vector<std::int64_t> rows = numbers(3 * RowBuffer::kBlockRows + 5);
  RowBuffer buffer;
  for (std::size_t begin = 0; begin < rows.size(); begin += 4096)
    buffer.append(std::span(rows).subspan(begin, std::min<std::size_t>(4096, rows.size() - begin)));
  ASSERT_EQ(buffer.size(), rows.size());
  for (std::size_t i = 0; i < rows.size(); ++i) ASSERT_EQ(buffer[i], rows[i]);
  for (std::size_t i = rows.size(); i > 0; --i) ASSERT_EQ(buffer.take_back(), rows[i - 1]);
  EXPECT_TRUE(buffer.empty());
  buffer.append(std::span(rows).first(2));
  EXPECT_EQ(buffer.size(), 2U);
  EXPECT_EQ(buffer[1], 1);
}

// Regression: all rows moved at once, so a fill of 400 million rows could not be cancelled
// meanwhile, and its thread was left behind.
TEST(RowBuffer, NoFullBlockMovesWhileItGrows) {
  const std::vector<std::int64_t> block = numbers(RowBuffer::kBlockRows);
  RowBuffer buffer;
  std::vector<const std::int64_t*> places;
  for (int i = 0; i < 100; ++i) {
    buffer.append(block);
    places.push_back(&buffer[buffer.size() - 1]);
  }
  for (std::size_t i = 0; i < places.size(); ++i)
    EXPECT_EQ(places[i], &buffer[(i + 1) * RowBuffer::kBlockRows - 1]) << i;
}

}  // namespace
}  // namespace cohort::data
