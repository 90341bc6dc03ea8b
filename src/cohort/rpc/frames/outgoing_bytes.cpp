// SPDX-License-Identifier: Apache-2.0
#include "cohort/rpc/frames/outgoing_bytes.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "cohort/core/crc32c.h"
#include "cohort/rpc/frames/frame_codec.h"

namespace cohort::rpc::internal {
namespace {

// Copying less than this is cheaper than another part for the kernel to gather.
constexpr std::size_t kCopiedBytesMax = 8192;
// Copied pieces are joined up to this size.
constexpr std::size_t kTailBytesMax = std::size_t{64} << 10;
constexpr std::array<std::byte, Block::kAlignment> kPadding{};

}  // namespace

std::span<const std::byte> OutgoingPiece::bytes() const {
  if (!tensor.defined()) return copied;
  return {static_cast<const std::byte*>(tensor.data_ptr()), tensor.nbytes()};
}

// The last piece, if it can take `bytes` more of this kind; otherwise a new one.
Bytes& OutgoingBytes::tail_for(std::size_t bytes, Kind kind) {
  const bool is_joined = !pieces_.empty() && pieces_.back().kind == kind &&
                         !pieces_.back().tensor.defined() &&
                         pieces_.back().copied.size() + bytes <= kTailBytesMax;
  if (!is_joined) pieces_.push_back({.kind = kind});
  return pieces_.back().copied;
}

void OutgoingBytes::add_copy(std::span<const std::byte> bytes, Kind kind) {
  if (bytes.empty()) return;
  Bytes& tail = tail_for(bytes.size(), kind);
  tail.insert(tail.end(), bytes.begin(), bytes.end());
  size_bytes_ += bytes.size();
}

void OutgoingBytes::add_tensor(at::Tensor tensor, Kind kind) {
  size_bytes_ += tensor.nbytes();
  pieces_.push_back({.kind = kind, .tensor = std::move(tensor)});
}

void OutgoingBytes::append(Frame frame, bool has_payload_sum) {
  prepare_tensors(frame.tensors);
  const Bytes table = encode_table(frame.tensors);
  const FrameHeader header = header_of(frame, table, has_payload_sum);
  const std::size_t small_bytes =
      header.head_bytes() + std::min<std::size_t>(header.payload_bytes, kCopiedBytesMax);
  if (small_bytes <= kTailBytesMax)
    tail_for(small_bytes, Kind::ready).reserve(small_bytes + kPayloadSumBytes);
  add_copy(std::as_bytes(std::span(&header, 1)));
  if (frame.metadata.size() > kCopiedBytesMax) {
    size_bytes_ += frame.metadata.size();
    pieces_.push_back({.copied = std::move(frame.metadata)});
  } else {
    add_copy(frame.metadata);
  }
  add_copy(table);
  append_payload(frame.tensors, header.has_payload_sum());
}

// If all tensors are small, they are copied and the checksum is computed here; otherwise it is
// computed when the bytes are sent.
void OutgoingBytes::append_payload(std::vector<at::Tensor>& tensors, bool has_sum) {
  const bool is_late = has_sum && std::any_of(tensors.begin(), tensors.end(), [](const auto& each) {
                         return each.nbytes() > kCopiedBytesMax;
                       });
  const Kind kind = is_late ? Kind::payload : Kind::ready;
  std::uint32_t sum = 0;
  const auto copy = [&](std::span<const std::byte> bytes) {
    if (has_sum && !is_late) sum = crc32c(bytes, sum);
    add_copy(bytes, kind);
  };
  std::size_t end = 0;
  for (at::Tensor& tensor : tensors) {
    const std::size_t bytes = tensor.nbytes();
    if (bytes == 0) continue;
    copy(std::span(kPadding).first(aligned(end) - end));
    end = aligned(end) + bytes;
    if (bytes > kCopiedBytesMax) {
      add_tensor(std::move(tensor), kind);
    } else {
      copy({static_cast<const std::byte*>(tensor.data_ptr()), bytes});
    }
  }
  if (has_sum)
    add_copy(std::as_bytes(std::span(&sum, 1)), is_late ? Kind::payload_sum : Kind::ready);
}

void OutgoingBytes::seal(std::uint32_t number) { seal_header(pieces_.front().copied, number); }

void OutgoingBytes::append(OutgoingBytes&& other) {
  if (pieces_.empty()) {
    std::swap(*this, other);
    return;
  }
  COHORT_ASSERT(other.consumed_ == 0 && other.ready_pieces_ == 0);
  for (OutgoingPiece& piece : other.pieces_) {
    const bool is_copied = piece.kind == Kind::ready && !piece.tensor.defined() &&
                           piece.copied.size() <= kCopiedBytesMax;
    if (is_copied) {
      add_copy(piece.copied);
    } else {
      size_bytes_ += piece.bytes().size();
      pieces_.push_back(std::move(piece));
    }
  }
  other = OutgoingBytes();
}

std::size_t OutgoingBytes::front(std::span<std::span<const std::byte>> parts) {
  const std::size_t most = std::min(parts.size(), pieces_.size());
  std::size_t summed_bytes_max = kSummedBytesMax;
  std::size_t count = 0;
  for (; count < most && summed_bytes_max > 0; ++count) {
    OutgoingPiece& piece = pieces_[count];
    const std::size_t gone = count == 0 ? consumed_ : 0;
    parts[count] = piece.bytes();
    if (count == ready_pieces_) {
      const std::size_t ready = make_ready(piece, gone + summed_bytes_max);
      if (ready < parts[count].size()) {
        parts[count] = parts[count].subspan(gone, ready - gone);
        return count + 1;
      }
      ++ready_pieces_;
      ready_bytes_ = 0;
    }
    parts[count] = parts[count].subspan(gone);
    if (piece.kind == Kind::payload)
      summed_bytes_max -= std::min(summed_bytes_max, parts[count].size());
  }
  return count;
}

// Returns how many bytes of the first piece that is not ready may be sent. For a payload, extends
// the checksum up to `bytes_max` and returns how many bytes it covers.
std::size_t OutgoingBytes::make_ready(OutgoingPiece& piece, std::size_t bytes_max) {
  const auto bytes = piece.bytes();
  if (piece.kind == Kind::payload_sum) {
    std::memcpy(piece.copied.data(), &sum_, kPayloadSumBytes);
    sum_ = 0;
  }
  if (piece.kind != Kind::payload) return bytes.size();
  const std::size_t end = std::max(ready_bytes_, std::min(bytes_max, bytes.size()));
  sum_ = crc32c(bytes.subspan(ready_bytes_, end - ready_bytes_), sum_);
  ready_bytes_ = end;
  return end;
}

void OutgoingBytes::consume(std::size_t count) {
  size_bytes_ -= count;
  consumed_ += count;
  while (!pieces_.empty() && consumed_ >= pieces_.front().bytes().size()) {
    consumed_ -= pieces_.front().bytes().size();
    pieces_.pop_front();
    if (ready_pieces_ > 0) --ready_pieces_;
  }
}

}  // namespace cohort::rpc::internal
