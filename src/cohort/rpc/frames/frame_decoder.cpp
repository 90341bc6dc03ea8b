// SPDX-License-Identifier: Apache-2.0
#include "cohort/rpc/frames/frame_decoder.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "cohort/core/crc32c.h"

namespace cohort::rpc::internal {
namespace {

constexpr std::size_t kStagingBytes = std::size_t{256} << 10;
// A partial head up to this size is moved to the front at once, to leave room for the next piece.
constexpr std::size_t kMovedBytesMax = 4096;
// After a frame with a payload of at least the first size, only so many bytes of the next frame are
// received before its head is known: the rest goes straight into its block, and is not copied.
constexpr std::size_t kDirectBytesMin = std::size_t{32} << 10;
constexpr std::size_t kHeadBytes = 4096;

}  // namespace

FrameDecoder::FrameDecoder(std::size_t frame_bytes_max)
    : frame_bytes_max_(frame_bytes_max), staging_(kStagingBytes) {}

std::span<std::byte> FrameDecoder::payload_rest() {
  if (!partial_->payload) return {};
  return {partial_->payload->data() + partial_->filled_bytes,
          partial_->payload_bytes - partial_->filled_bytes};
}

std::array<std::span<std::byte>, 2> FrameDecoder::space() {
  const auto free = std::span(staging_).subspan(end_);
  if (!partial_) {
    const bool is_short = expects_large_ && end_ - begin_ < kHeadBytes;
    return {free.first(is_short ? std::min(free.size(), kHeadBytes) : free.size()),
            std::span<std::byte>()};
  }
  const auto rest = payload_rest();
  if (partial_->has_sum && rest.size() > kSummedBytesMax)
    return {rest.first(kSummedBytesMax), std::span<std::byte>()};
  return {rest, free};
}

void FrameDecoder::commit(std::size_t count, const Sink& sink) {
  if (partial_) count -= fill(count);
  end_ += count;
  decode_staged(sink);
}

// Counts bytes that were written to the payload. Returns how many of `count` belong to it.
std::size_t FrameDecoder::fill(std::size_t count) {
  const auto own = payload_rest().first(std::min(count, payload_rest().size()));
  if (partial_->has_sum) partial_->sum = crc32c(own, partial_->sum);
  partial_->filled_bytes += own.size();
  return own.size();
}

void FrameDecoder::feed(std::span<const std::byte> bytes, const Sink& sink) {
  while (!bytes.empty()) {
    std::size_t written = 0;
    for (const std::span<std::byte> place : space()) {
      const std::size_t count = std::min(place.size(), bytes.size());
      if (count > 0) std::memcpy(place.data(), bytes.data(), count);
      bytes = bytes.subspan(count);
      written += count;
    }
    commit(written, sink);
  }
}

void FrameDecoder::decode_staged(const Sink& sink) {
  while (partial_ ? end_frame(sink) : begin_frame()) {
  }
  if (begin_ != end_) return;
  begin_ = end_ = 0;
  if (staging_.size() > kStagingBytes) std::vector<std::byte>(kStagingBytes).swap(staging_);
}

// Takes a frame's head, and the bytes of its payload that have arrived, from the staged bytes.
// Returns false if the head is incomplete.
bool FrameDecoder::begin_frame() {
  const auto staged = std::span<const std::byte>(staging_).subspan(begin_, end_ - begin_);
  if (staged.size() < kHeaderBytes) {
    make_room(kHeaderBytes);
    return false;
  }
  const FrameHeader header = decode_header(staged, frame_bytes_max_, next_number_);
  if (staged.size() < header.head_bytes()) {
    make_room(header.head_bytes());
    return false;
  }
  open_frame(header);
  const auto rest = payload_rest();
  const std::size_t own = std::min(rest.size(), end_ - begin_);
  if (own > 0) std::memcpy(rest.data(), staging_.data() + begin_, own);
  begin_ += fill(own);
  return true;
}

// Delivers the frame. Returns false if it is incomplete.
bool FrameDecoder::end_frame(const Sink& sink) {
  if (!payload_rest().empty()) return false;
  const std::size_t dropped = std::min(partial_->dropped_bytes, end_ - begin_);
  begin_ += dropped;
  partial_->dropped_bytes -= dropped;
  if (partial_->dropped_bytes > 0) return false;
  if (partial_->has_sum) {
    if (end_ - begin_ < kPayloadSumBytes) {
      make_room(kPayloadSumBytes);
      return false;
    }
    std::uint32_t sum = 0;
    std::memcpy(&sum, staging_.data() + begin_, kPayloadSumBytes);
    check_sum("a payload", sum, partial_->sum);
    begin_ += kPayloadSumBytes;
  }
  deliver(sink);
  return true;
}

void FrameDecoder::open_frame(const FrameHeader& header) {
  const auto body = std::span<const std::byte>(staging_).subspan(begin_ + kHeaderBytes);
  const auto metadata = body.first(header.metadata_bytes);
  check_sum("metadata and table", header.head_sum,
            crc32c(body.first(header.head_bytes() - kHeaderBytes)));
  Partial partial;
  partial.frame = {.role = static_cast<Frame::Role>(header.role),
                   .type = header.type,
                   .id = header.id,
                   .metadata = Bytes(metadata.begin(), metadata.end())};
  partial.slots =
      decode_table(body.subspan(header.metadata_bytes, header.table_bytes), header.payload_bytes);
  partial.payload_bytes = header.payload_bytes;
  partial.has_sum = header.has_payload_sum();
  expects_large_ = header.payload_bytes >= kDirectBytesMin;
  try {
    if (header.payload_bytes > 0) partial.payload = acquire_block(header.payload_bytes);
  } catch (const Error& error) {
    const Frame::Role role = partial.frame.role;
    if (role != Frame::Role::request && role != Frame::Role::response) throw;
    drop_payload(partial, error);
  }
  begin_ += header.head_bytes();
  ++next_number_;
  partial_ = std::move(partial);
}

void FrameDecoder::drop_payload(Partial& partial, const Error& why) {
  partial.frame = error_frame(partial.frame.id, why);
  partial.slots.clear();
  partial.dropped_bytes = partial.payload_bytes + (partial.has_sum ? kPayloadSumBytes : 0);
  partial.payload_bytes = 0;
  partial.has_sum = false;
}

void FrameDecoder::deliver(const Sink& sink) {
  Partial partial = std::move(*partial_);
  partial_.reset();
  partial.frame.tensors = make_tensors(partial.slots, partial.payload.get());
  // The views keep the block. If there are none, it must not be kept while the frame is handled.
  partial.payload = BlockRef();
  sink(std::move(partial.frame));
}

// Moves the partial head to the front; grows the buffer only if the received bytes fill it.
void FrameDecoder::make_room(std::size_t head_bytes) {
  const bool is_dear = end_ - begin_ > kMovedBytesMax;
  if (is_dear && staging_.size() - begin_ >= head_bytes && end_ < staging_.size()) return;
  std::memmove(staging_.data(), staging_.data() + begin_, end_ - begin_);
  end_ -= begin_;
  begin_ = 0;
  if (end_ == staging_.size()) staging_.resize(std::min(2 * end_, std::max(head_bytes, end_ + 1)));
}

}  // namespace cohort::rpc::internal
