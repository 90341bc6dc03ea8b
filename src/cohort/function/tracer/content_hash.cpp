// SPDX-License-Identifier: Apache-2.0
#include "cohort/function/tracer/content_hash.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "cohort/function/program/work.h"

namespace cohort::function {
namespace {

constexpr std::size_t kBlock = 16 << 10;
constexpr std::size_t kLine = 64;
// Lines of a sampled memory, and blocks of the largest one that has blocks of kBlock bytes.
constexpr std::size_t kLines = kReadWhole / kLine;
constexpr std::size_t kLanes = 4;
constexpr std::size_t kStride = kLanes * sizeof(std::uint64_t);

// The product leaves a word's highest bit in its place, so the rotation moves it: otherwise the
// flipped signs of two neighbours would cancel.
std::uint64_t mixed(std::uint64_t lane, std::uint64_t word) {
  return std::rotl((lane ^ word) * 0x9e3779b97f4a7c15, 31);
}

// Reads one line of every `step` bytes, at a place that differs from line to line: elements that
// lie at regular distances are met too.
std::uint64_t hash_of_lines(std::span<const std::byte> block, std::size_t step, std::size_t seed) {
  std::uint64_t hash = seed;
  for (std::size_t begin = 0; begin < block.size(); begin += step) {
    const std::size_t place = mixed(seed, begin) % (step / kLine) * kLine;
    const std::size_t line = std::min(kLine, block.size());
    hash = mixed(hash, hash_of(block.subspan(std::min(begin + place, block.size() - line), line)));
  }
  return hash;
}

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
  work_of_thread().hashed_bytes += bytes.size();
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

// A memory with more than kLines blocks of the usual size has larger ones, each with one line.
std::size_t ContentHash::block_bytes() const {
  return is_sampled() ? std::max(kBlock, line_distance()) : kBlock;
}

std::size_t ContentHash::line_distance() const { return (size_ / kLines / kLine + 1) * kLine; }

std::size_t ContentHash::end_block(ByteRange range) const {
  return (range.end + block_bytes() - 1) / block_bytes();
}

std::uint64_t ContentHash::hash_of_block(std::span<const std::byte> memory,
                                         std::size_t block) const {
  const std::size_t begin = block * block_bytes();
  const std::size_t bytes = std::min(block_bytes(), memory.size() - begin);
  const std::span<const std::byte> content = memory.subspan(begin, bytes);
  if (!is_sampled()) return hash_of(content);
  std::uint64_t hash = hash_of_lines(content, line_distance(), block);
  const std::size_t edge = std::min(bytes, kBlock);
  if (block == 0) hash = mixed(hash, hash_of(content.first(edge)));
  if (begin + bytes == size_) hash = mixed(hash, hash_of(content.last(edge)));
  return hash;
}

void ContentHash::note(std::span<const std::byte> memory, ByteRange range, Coverage coverage) {
  const bool is_covered_otherwise = size_ > kReadWhole && coverage != coverage_;
  if (memory.size() != size_ || is_covered_otherwise) {
    size_ = memory.size();
    coverage_ = coverage;
    blocks_.assign((size_ + block_bytes() - 1) / block_bytes(), 0);
    range = {0, size_};
  }
  for (std::size_t i = range.begin / block_bytes(); i < end_block(range); ++i)
    blocks_[i] = hash_of_block(memory, i);
}

bool ContentHash::matches(std::span<const std::byte> memory, ByteRange range) const {
  if (memory.size() != size_) return false;
  for (std::size_t i = range.begin / block_bytes(); i < end_block(range); ++i) {
    if (blocks_[i] != hash_of_block(memory, i)) return false;
  }
  return true;
}

}  // namespace cohort::function
