// SPDX-License-Identifier: Apache-2.0
// Frames on their way out: runs of bytes, those of large tensors still where the tensors are.
#pragma once

#include <cstddef>
#include <deque>
#include <span>

#include "cohort/rpc/frame.h"

namespace cohort::rpc::internal {

// Bytes to send: copied ones, or a tensor's own.
struct Segment {
  Bytes copied;
  at::Tensor tensor;  // where defined, the bytes are its

  std::span<const std::byte> bytes() const;
};

// A first-in first-out run of bytes. Thread-compatible.
class Segments {
 public:
  // Small parts of a frame are copied together, large ones are only referred to. invalid_argument
  // for a frame that cannot travel; nothing is added then.
  void append(Frame frame);
  // Moves everything from `other` behind what is here, joining small pieces.
  void append(Segments&& other);
  bool is_empty() const { return segments_.empty(); }
  std::size_t size_bytes() const { return size_bytes_; }
  // Fills `parts` with the first bytes; returns how many parts there are.
  std::size_t front(std::span<std::span<const std::byte>> parts) const;
  // Forgets the first `count` bytes.
  void consume(std::size_t count);

 private:
  Bytes& tail_for(std::size_t bytes);
  void add_copy(std::span<const std::byte> bytes);
  void add_tensor(at::Tensor tensor);

  std::deque<Segment> segments_;
  std::size_t consumed_ = 0;  // of the first segment
  std::size_t size_bytes_ = 0;
};

}  // namespace cohort::rpc::internal
