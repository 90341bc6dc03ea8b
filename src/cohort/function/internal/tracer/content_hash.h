// SPDX-License-Identifier: Apache-2.0
// Whether memory still holds what the recorded ops left there.
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

// Those of a strided tensor in its storage, from its first element to its last.
ByteRange range_of(const at::Tensor& tensor);

// One hash for each block, so that a part of a large memory is looked at without the rest.
// Thread-compatible.
class ContentHash {
 public:
  // The bytes of `range` are as they should be now. The whole memory counts where its size is new.
  void note(std::span<const std::byte> memory, ByteRange range);
  bool is_noted() const { return size_ > 0; }
  // False too when the memory has another size than it had.
  bool matches(std::span<const std::byte> memory, ByteRange range) const;

 private:
  std::vector<std::uint64_t> blocks_;
  std::size_t size_ = 0;
};

// Fast (about a byte a cycle and lane), and different for any two contents of up to 32 bytes.
std::uint64_t hash_of(std::span<const std::byte> bytes);

}  // namespace cohort::function
