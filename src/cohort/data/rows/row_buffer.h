// SPDX-License-Identifier: Apache-2.0
// The rows in a shuffle's buffer.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace cohort::data {

// Like a std::vector of rows, but in blocks: while it grows, no full block moves. A vector of 400
// million rows would copy gigabytes at once, during which the fill cannot be cancelled, and would
// need twice its memory meanwhile. Thread-compatible.
class RowBuffer {
 public:
  static constexpr std::size_t kBlockRows = std::size_t{1} << 16;

  std::size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  std::int64_t& operator[](std::size_t i) { return blocks_[i / kBlockRows][i % kBlockRows]; }
  std::int64_t operator[](std::size_t i) const { return blocks_[i / kBlockRows][i % kBlockRows]; }

  // Allocates memory. Returns how many of `wanted` rows, at least one, append() can then take
  // without allocating.
  std::size_t make_room(std::size_t wanted) {
    if (blocks_.empty() || blocks_.back().size() == kBlockRows) blocks_.emplace_back();
    std::vector<std::int64_t>& last = blocks_.back();
    const std::size_t count = std::min(wanted, kBlockRows - last.size());
    // Most buffers are smaller than a block, so the first block grows as it is filled.
    const std::size_t least = blocks_.size() > 1 ? kBlockRows : 2 * last.capacity();
    if (last.capacity() < last.size() + count)
      last.reserve(std::min(kBlockRows, std::max(least, last.size() + count)));
    return count;
  }
  void append(std::span<const std::int64_t> rows) {
    while (!rows.empty()) {
      const auto count = static_cast<std::ptrdiff_t>(make_room(rows.size()));
      blocks_.back().insert(blocks_.back().end(), rows.begin(), rows.begin() + count);
      size_ += static_cast<std::size_t>(count);
      rows = rows.subspan(static_cast<std::size_t>(count));
    }
  }
  // Removes the last row and returns it.
  std::int64_t take_back() {
    if (blocks_.back().empty()) blocks_.pop_back();
    const std::int64_t row = blocks_.back().back();
    blocks_.back().pop_back();
    --size_;
    return row;
  }
  void clear() {
    blocks_.clear();
    size_ = 0;
  }

 private:
  std::vector<std::vector<std::int64_t>> blocks_;  // all but the last are full
  std::size_t size_ = 0;
};

}  // namespace cohort::data
