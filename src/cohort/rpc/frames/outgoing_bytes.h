// SPDX-License-Identifier: Apache-2.0
// Frames to be sent, as pieces of bytes; large tensors are not copied.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "cohort/rpc/frames/frame.h"

namespace cohort::rpc::internal {

// Bytes to send: copied ones, or a tensor's own.
struct OutgoingPiece {
  // A payload's checksum is computed when its bytes are sent, while they are in the cache. It
  // covers the pieces of kind `payload`; the `payload_sum` piece after them holds it. Other pieces
  // are `ready`.
  enum class Kind : std::uint8_t { ready, payload, payload_sum };
  Kind kind = Kind::ready;
  Bytes copied{};
  at::Tensor tensor{};  // if defined, the bytes are the tensor's

  std::span<const std::byte> bytes() const;
};

// A first-in first-out queue of bytes. Thread-compatible.
class OutgoingBytes {
 public:
  // Copies small parts of a frame together, and only references large ones. Throws invalid_argument
  // for a frame that cannot be sent, and then adds nothing.
  void append(Frame frame, bool has_payload_sum);
  // Completes the header of the queued frame, which must be the only one.
  void seal(std::uint32_t number);
  // Moves everything from `other` to the end, joining small pieces. front() must not have been
  // called on `other`.
  void append(OutgoingBytes&& other);
  bool is_empty() const { return pieces_.empty(); }
  std::size_t size_bytes() const { return size_bytes_; }
  // Fills `parts` with the first bytes; returns how many parts there are.
  std::size_t front(std::span<std::span<const std::byte>> parts);
  // Forgets the first `count` bytes.
  void consume(std::size_t count);

 private:
  using Kind = OutgoingPiece::Kind;

  Bytes& tail_for(std::size_t bytes, Kind kind);
  void add_copy(std::span<const std::byte> bytes, Kind kind = Kind::ready);
  void add_tensor(at::Tensor tensor, Kind kind);
  void append_payload(std::vector<at::Tensor>& tensors, bool has_sum);
  std::size_t make_ready(OutgoingPiece& piece, std::size_t bytes_max);

  std::deque<OutgoingPiece> pieces_;
  std::size_t consumed_ = 0;  // of the first piece
  std::size_t size_bytes_ = 0;
  // The bytes that may be sent: this many whole pieces, then this many bytes of the next one; and
  // the checksum of the payload up to there.
  std::size_t ready_pieces_ = 0;
  std::size_t ready_bytes_ = 0;
  std::uint32_t sum_ = 0;
};

}  // namespace cohort::rpc::internal
