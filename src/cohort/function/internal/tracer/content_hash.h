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

// One hash for each block, so that a part of a large memory is checked without the rest.
// Thread-compatible.
class ContentHash {
 public:
  // Records the current bytes of `range`; of the whole memory if its size has changed.
  void note(std::span<const std::byte> memory, ByteRange range);
  bool is_noted() const { return size_ > 0; }
  // Whether the bytes of `range` are as recorded. Also false if the size of the memory has changed.
  bool matches(std::span<const std::byte> memory, ByteRange range) const;

 private:
  std::vector<std::uint64_t> blocks_;
  std::size_t size_ = 0;
};

// Fast (about one byte per cycle and lane). Contents of equal size that differ in only one 8-byte
// word have different hashes.
std::uint64_t hash_of(std::span<const std::byte> bytes);

}  // namespace cohort::function
