// SPDX-License-Identifier: Apache-2.0
// Frames on their way out: runs of bytes, those of large tensors still where the tensors are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "cohort/rpc/frame.h"

namespace cohort::rpc::internal {

// Bytes to send: copied ones, or a tensor's own.
struct OutgoingPiece {
  // A payload's checksum is found as its bytes leave, while they are in the cache: `payload` bytes
  // have part in it, and `payload_sum` is its place after them. Others are `ready`.
  enum class Kind : std::uint8_t { ready, payload, payload_sum };
  Kind kind = Kind::ready;
  Bytes copied{};
  at::Tensor tensor{};  // where defined, the bytes are its

  std::span<const std::byte> bytes() const;
};

// A first-in first-out run of bytes. Thread-compatible.
class OutgoingBytes {
 public:
  // Small parts of a frame are copied together, large ones are only referred to. invalid_argument
  // for a frame that cannot travel; nothing is added then.
  void append(Frame frame, bool has_payload_sum);
  // Completes the header of the only frame that is here.
  void seal(std::uint32_t number);
  // Moves everything from `other` behind what is here, joining small pieces. No bytes of `other`
  // have been asked for.
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
  // What may leave: so many pieces, and then so many bytes of the next one; and the checksum of
  // the payload up to there.
  std::size_t ready_pieces_ = 0;
  std::size_t ready_bytes_ = 0;
  std::uint32_t sum_ = 0;
};

}  // namespace cohort::rpc::internal
