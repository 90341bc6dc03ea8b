// SPDX-License-Identifier: Apache-2.0
#include "cohort/data/files/buffered_reader.h"

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace cohort::data {
namespace {

class MemoryStream final : public FileStream {
 public:
  explicit MemoryStream(std::string_view bytes) : bytes_(bytes) {}

  std::size_t read(std::span<char> buffer) override {
    if (offset_ >= bytes_.size()) return 0;
    const std::size_t count = bytes_.copy(buffer.data(), buffer.size(), offset_);
    offset_ += count;
    return count;
  }
  void seek(std::uint64_t offset) override { offset_ = offset; }
  std::optional<std::uint64_t> size() const override { return bytes_.size(); }
  void check_unchanged() const override {}

 private:
  std::string_view bytes_;
  std::uint64_t offset_ = 0;
};

// Asks for one byte more until all are there, as a reader does that looks for the end of a value.
std::uint64_t bytes_moved_for(std::size_t size) {
  const std::string text(size, 'x');
  BufferedReader reader(std::make_unique<MemoryStream>(text), 1);
  std::size_t seen = 0;
  while (seen < size) seen = reader.peek(seen + 1).size();
  return reader.moved_bytes();
}

// The buffer grew by one page at a time: a line of 20 MB took 45 seconds.
TEST(BufferedReader, MovesTheBytesOfALongValueAFewTimes) {
  for (const std::size_t size : {100'000, 1'000'000, 10'000'000}) {
    EXPECT_LE(bytes_moved_for(size), 2 * size);
  }
}

TEST(BufferedReader, HasTheSameBytesAfterItGrew) {
  std::string text;
  for (int i = 0; text.size() < 100'000; ++i) text += std::to_string(i);
  BufferedReader reader(std::make_unique<MemoryStream>(text), 1);
  reader.peek(1);
  reader.advance(7);
  EXPECT_EQ(reader.peek(90'000).substr(0, 90'000), std::string_view(text).substr(7, 90'000));
  reader.advance(90'000);
  EXPECT_EQ(reader.peek(1), std::string_view(text).substr(90'007, reader.peek(1).size()));
  EXPECT_EQ(reader.offset(), 90'007U);
}

}  // namespace
}  // namespace cohort::data
