// SPDX-License-Identifier: Apache-2.0
// Detects whether memory has changed since the recorded ops wrote it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace cohort::function {

// Bytes [begin, end) of a memory.
struct ByteRange {
  std::size_t begin = 0;
  std::size_t end = 0;
};

// The bytes of a strided tensor in its storage, from its first element to its last.
ByteRange range_of(const at::Tensor& tensor);

// Which bytes a hash reads.
enum class Coverage : std::uint8_t {
  // All of them.
  all,
  // All of a memory of at most kReadWhole bytes. In a larger one about that many: its begin, its
  // end, and lines of 64 bytes that lie evenly spread, so that a write of a whole row or of one
  // element in each of many rows is noticed, but one of a single element may not be.
  sample,
};
inline constexpr std::size_t kReadWhole = 1 << 20;

// One hash for each block, so that a part of a large memory is checked without the rest.
// Thread-compatible.
class ContentHash {
 public:
  // Records the current bytes of `range`; of the whole memory if its size or the coverage has
  // changed.
  void note(std::span<const std::byte> memory, ByteRange range, Coverage coverage);
  bool is_noted() const { return size_ > 0; }
  // Whether the bytes of `range` are as recorded. Also false if the size of the memory has changed.
  bool matches(std::span<const std::byte> memory, ByteRange range) const;

 private:
  bool is_sampled() const { return coverage_ == Coverage::sample && size_ > kReadWhole; }
  std::size_t block_bytes() const;
  std::size_t line_distance() const;
  std::size_t end_block(ByteRange range) const;
  std::uint64_t hash_of_block(std::span<const std::byte> memory, std::size_t block) const;

  std::vector<std::uint64_t> blocks_;
  std::size_t size_ = 0;
  Coverage coverage_ = Coverage::all;
};

// Fast (about one byte per cycle and lane). Contents of equal size that differ in only one 8-byte
// word have different hashes.
std::uint64_t hash_of(std::span<const std::byte> bytes);

}  // namespace cohort::function
