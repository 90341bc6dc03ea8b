// SPDX-License-Identifier: Apache-2.0
#include "cohort/function/internal/tracer/content_hash.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

namespace cohort::function {
namespace {

constexpr std::size_t kBlock = 16 << 10;
constexpr std::size_t kLanes = 4;
constexpr std::size_t kStride = kLanes * sizeof(std::uint64_t);

// The product leaves a word's highest bit in its place, so the rotation moves it: otherwise the
// flipped signs of two neighbours would cancel.
std::uint64_t mixed(std::uint64_t lane, std::uint64_t word) {
  return std::rotl((lane ^ word) * 0x9e3779b97f4a7c15, 31);
}

std::span<const std::byte> block_of(std::span<const std::byte> memory, std::size_t block) {
  const std::size_t begin = block * kBlock;
  return memory.subspan(begin, std::min(kBlock, memory.size() - begin));
}

std::size_t end_block(ByteRange range) { return (range.end + kBlock - 1) / kBlock; }

}  // namespace

ByteRange range_of(const at::Tensor& tensor) {
  std::int64_t last = 0;
  for (std::int64_t dim = 0; dim < tensor.dim(); ++dim) {
    if (tensor.size(dim) == 0) return {};
    last += (tensor.size(dim) - 1) * tensor.stride(dim);
  }
  const auto element = static_cast<std::size_t>(tensor.element_size());
  const auto offset = static_cast<std::size_t>(tensor.storage_offset());
  return {offset * element, (offset + static_cast<std::size_t>(last) + 1) * element};
}

std::uint64_t hash_of(std::span<const std::byte> bytes) {
  std::array<std::uint64_t, kLanes> lanes = {0x243f6a8885a308d3, 0x13198a2e03707344,
                                             0xa4093822299f31d0, 0x082efa98ec4e6c89};
  const std::byte* at = bytes.data();
  std::size_t left = bytes.size();
  for (; left >= kStride; left -= kStride, at += kStride) {
    std::array<std::uint64_t, kLanes> words;
    std::memcpy(words.data(), at, kStride);
    for (std::size_t i = 0; i < kLanes; ++i) lanes[i] = mixed(lanes[i], words[i]);
  }
  std::array<std::uint64_t, kLanes> last = {};
  if (left > 0) std::memcpy(last.data(), at, left);
  std::uint64_t hash = bytes.size();
  for (std::size_t i = 0; i < kLanes; ++i) hash = mixed(hash, mixed(lanes[i], last[i]));
  return hash;
}

void ContentHash::note(std::span<const std::byte> memory, ByteRange range) {
  if (memory.size() != size_) {
    size_ = memory.size();
    blocks_.assign((size_ + kBlock - 1) / kBlock, 0);
    range = {0, size_};
  }
  for (std::size_t i = range.begin / kBlock; i < end_block(range); ++i)
    blocks_[i] = hash_of(block_of(memory, i));
}

bool ContentHash::matches(std::span<const std::byte> memory, ByteRange range) const {
  if (memory.size() != size_) return false;
  for (std::size_t i = range.begin / kBlock; i < end_block(range); ++i) {
    if (blocks_[i] != hash_of(block_of(memory, i))) return false;
  }
  return true;
}

}  // namespace cohort::function
