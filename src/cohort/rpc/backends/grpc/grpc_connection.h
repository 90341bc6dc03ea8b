// SPDX-License-Identifier: Apache-2.0
// Frames over a bidirectional gRPC stream, for either end.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

#include "cohort/rpc/frames/block_pool.h"
#include "cohort/rpc/frames/channel_end.h"
#include "cohort/rpc/frames/frame_decoder.h"
#include "cohort/rpc/frames/outgoing_bytes.h"

namespace cohort::rpc::backends {

// A byte stream each way. One reader and one writer at a time; cancel() from any thread.
class ByteStream {
 public:
  virtual ~ByteStream() = default;
  // Blocks; false at the end.
  virtual bool read(std::string& bytes) = 0;
  virtual bool write(std::string bytes) = 0;
  // Ends both directions for good.
  virtual void cancel() noexcept = 0;
};

// Shared by the channel's handle and its threads: one reads and runs the handlers, one writes.
// Thread-safe, but for run().
class GrpcConnection {
 public:
  GrpcConnection(internal::PeerName peer, std::size_t frame_bytes_max);

  internal::ChannelEnd& end() { return end_; }
  // Call it from a handler.
  void set_frame_bytes_max(std::size_t bytes) { decoder_.set_frame_bytes_max(bytes); }
  void send(Frame frame);
  void set_payload_checksums(bool are_on) noexcept {
    has_payload_sums_.store(are_on, std::memory_order_relaxed);
  }
  net::HostProof host_proof() const { return {}; }
  void close() noexcept { close_with(end_.cancelled()); }
  // Zero after the close, since nothing more will be sent.
  std::size_t queued_bytes() const {
    return end_.is_closed() ? 0 : queued_bytes_.load(std::memory_order_relaxed);
  }
  Channel::Progress progress() const {
    return {.received = received_bytes_.load(std::memory_order_relaxed),
            .delivered = sent_bytes_.load(std::memory_order_relaxed),
            .underway = queued_bytes()};
  }
  // Reads and calls the handlers until closed; runs the writer's thread meanwhile. Does not use
  // `stream` after it returns.
  void run(ByteStream& stream) noexcept;
  // Call it if run() will not be called, so that no thread waits for it.
  void abandon() noexcept;
  // Returns when run() is over, or at once if run() is the caller.
  void wait_done();

 private:
  void read_all(ByteStream& stream);
  void write_all(ByteStream& stream) noexcept;
  bool next_chunk(std::string& chunk);
  void wake_writer();
  void close_with(Error reason) noexcept;

  internal::ChannelEnd end_;
  internal::FrameDecoder decoder_;
  std::atomic<std::size_t> queued_bytes_{0};
  std::atomic<std::uint64_t> sent_bytes_{0};  // passed to gRPC
  std::atomic<std::uint64_t> received_bytes_{0};
  std::atomic<bool> has_payload_sums_{false};
  Mutex mutex_;
  std::uint32_t next_number_ COHORT_GUARDED_BY(mutex_) = 0;
  Condition changed_;
  internal::OutgoingBytes queue_ COHORT_GUARDED_BY(mutex_);
  ByteStream* stream_ COHORT_GUARDED_BY(mutex_) = nullptr;  // while run() is running
  bool is_done_ COHORT_GUARDED_BY(mutex_) = false;
  const internal::BlockUser block_user_;
};

}  // namespace cohort::rpc::backends
