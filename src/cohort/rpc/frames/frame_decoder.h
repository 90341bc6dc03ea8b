// SPDX-License-Identifier: Apache-2.0
// Decodes frames from a byte stream that arrives in arbitrary pieces.
#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "cohort/rpc/frames/frame_codec.h"

namespace cohort::rpc::internal {

// Many small frames may arrive in one piece; a large payload is received directly into its block.
// No memory is allocated for a length that was not checked, and for metadata at most twice the
// received bytes. Used only from one thread.
class FrameDecoder {
 public:
  using Sink = std::function<void(Frame frame)>;

  explicit FrameDecoder(std::size_t frame_bytes_max);

  // Applies from the next frame on.
  void set_frame_bytes_max(std::size_t bytes) { frame_bytes_max_ = bytes; }
  // Where to write the next bytes, in this order; the second span may be empty.
  std::array<std::span<std::byte>, 2> space();
  // Call it after writing `count` bytes there. Calls `sink` for each complete frame. Throws
  // data_loss for broken bytes, and any exception of `sink`; the decoder must not be used after
  // that. A request or response whose tensors need more memory than there is becomes an error frame
  // with its id (resource_exhausted); the connection goes on.
  void commit(std::size_t count, const Sink& sink);
  // Copies bytes that are in memory elsewhere.
  void feed(std::span<const std::byte> bytes, const Sink& sink);

 private:
  // A frame whose payload, or the checksum after it, is incomplete.
  struct Partial {
    Frame frame;
    std::vector<TensorSlot> slots;
    BlockRef payload;
    std::size_t payload_bytes = 0;
    std::size_t filled_bytes = 0;
    // Bytes of the payload to drop, since there is no memory for it. The frame is an error then.
    std::size_t dropped_bytes = 0;
    bool has_sum = false;
    std::uint32_t sum = 0;  // of the filled bytes
  };

  std::span<std::byte> payload_rest();
  std::size_t fill(std::size_t count);
  void decode_staged(const Sink& sink);
  bool begin_frame();
  bool end_frame(const Sink& sink);
  void open_frame(const FrameHeader& header);
  static void drop_payload(Partial& partial, const Error& why);
  void deliver(const Sink& sink);
  void make_room(std::size_t head_bytes);

  std::size_t frame_bytes_max_;
  std::vector<std::byte> staging_;
  std::size_t begin_ = 0;  // the start of the bytes in staging_ that are not decoded yet
  std::size_t end_ = 0;
  std::uint32_t next_number_ = 0;
  bool expects_large_ = false;  // since the frame before was
  std::optional<Partial> partial_;
};

}  // namespace cohort::rpc::internal
