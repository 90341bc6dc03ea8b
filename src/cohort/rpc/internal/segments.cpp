// SPDX-License-Identifier: Apache-2.0
#include "cohort/rpc/internal/segments.h"

#include <algorithm>
#include <array>
#include <utility>

#include "cohort/rpc/internal/frame_codec.h"

namespace cohort::rpc::internal {
namespace {

// Copying less than this is cheaper than another part for the kernel to gather.
constexpr std::size_t kCopiedBytesMax = 8192;
// Copied pieces are joined up to this size.
constexpr std::size_t kTailBytesMax = std::size_t{64} << 10;
constexpr std::array<std::byte, Block::kAlignment> kPadding{};

}  // namespace

std::span<const std::byte> Segment::bytes() const {
  if (!tensor.defined()) return copied;
  return {static_cast<const std::byte*>(tensor.data_ptr()), tensor.nbytes()};
}

// The last piece, where `bytes` more still belong to it; otherwise a new one.
Bytes& Segments::tail_for(std::size_t bytes) {
  const bool is_joined = !segments_.empty() && !segments_.back().tensor.defined() &&
                         segments_.back().copied.size() + bytes <= kTailBytesMax;
  if (!is_joined) segments_.emplace_back();
  return segments_.back().copied;
}

void Segments::add_copy(std::span<const std::byte> bytes) {
  if (bytes.empty()) return;
  Bytes& tail = tail_for(bytes.size());
  tail.insert(tail.end(), bytes.begin(), bytes.end());
  size_bytes_ += bytes.size();
}

void Segments::add_tensor(at::Tensor tensor) {
  size_bytes_ += tensor.nbytes();
  segments_.push_back({{}, std::move(tensor)});
}

void Segments::append(Frame frame) {
  prepare_tensors(frame.tensors);
  const Bytes table = encode_table(frame.tensors);
  const FrameHeader header = header_of(frame, table.size());
  const std::size_t small_bytes =
      header.head_bytes() + std::min<std::size_t>(header.payload_bytes, kCopiedBytesMax);
  if (small_bytes <= kTailBytesMax) tail_for(small_bytes).reserve(small_bytes);
  add_copy(std::as_bytes(std::span(&header, 1)));
  if (frame.metadata.size() > kCopiedBytesMax) {
    size_bytes_ += frame.metadata.size();
    segments_.push_back({std::move(frame.metadata), {}});
  } else {
    add_copy(frame.metadata);
  }
  add_copy(table);
  std::size_t end = 0;
  for (at::Tensor& tensor : frame.tensors) {
    const std::size_t bytes = tensor.nbytes();
    if (bytes == 0) continue;
    add_copy(std::span(kPadding).first(aligned(end) - end));
    end = aligned(end) + bytes;
    if (bytes > kCopiedBytesMax) {
      add_tensor(std::move(tensor));
    } else {
      add_copy({static_cast<const std::byte*>(tensor.data_ptr()), bytes});
    }
  }
}

void Segments::append(Segments&& other) {
  if (segments_.empty()) {
    std::swap(*this, other);
    return;
  }
  COHORT_ASSERT(other.consumed_ == 0);
  for (Segment& segment : other.segments_) {
    if (!segment.tensor.defined() && segment.copied.size() <= kCopiedBytesMax) {
      add_copy(segment.copied);
    } else {
      size_bytes_ += segment.bytes().size();
      segments_.push_back(std::move(segment));
    }
  }
  other = Segments();
}

std::size_t Segments::front(std::span<std::span<const std::byte>> parts) const {
  const std::size_t count = std::min(parts.size(), segments_.size());
  for (std::size_t i = 0; i < count; ++i) parts[i] = segments_[i].bytes();
  if (count > 0) parts[0] = parts[0].subspan(consumed_);
  return count;
}

void Segments::consume(std::size_t count) {
  size_bytes_ -= count;
  consumed_ += count;
  while (!segments_.empty() && consumed_ >= segments_.front().bytes().size()) {
    consumed_ -= segments_.front().bytes().size();
    segments_.pop_front();
  }
}

}  // namespace cohort::rpc::internal
