// SPDX-License-Identifier: Apache-2.0
// One TCP connection that carries frames, and the body of the thread that serves it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

#include "cohort/net/waker.h"
#include "cohort/rpc/frames/block_pool.h"
#include "cohort/rpc/frames/channel_end.h"
#include "cohort/rpc/frames/frame_decoder.h"
#include "cohort/rpc/frames/outgoing_bytes.h"

namespace cohort::rpc::backends {

// Shared by the channel's handle and its thread. Thread-safe, but for run(), which is the thread's
// body.
//
// One thread at a time receives: the channel's, or a guest (Channel::receive_as_guest). While there
// is a guest, and for kLentTime after it, the channel's thread does not look at the socket, so that
// an answer does not wake it, too.
//
// One thread at a time is the writer: a sender as long as the socket takes its bytes, otherwise the
// channel's thread. Others only queue; the writer takes the whole queue at once, so that small
// frames leave together. Many methods because these two roles share the socket.
class StreamConnection {
 public:
  StreamConnection(FileDescriptor socket, internal::PeerName peer, std::size_t frame_bytes_max);

  internal::ChannelEnd& end() { return end_; }
  // Call it from a handler.
  void set_frame_bytes_max(std::size_t bytes) { decoder_.set_frame_bytes_max(bytes); }
  void send(Frame frame);
  void set_payload_checksums(bool are_on) noexcept {
    has_payload_sums_.store(are_on, std::memory_order_relaxed);
  }
  net::HostProof host_proof() const { return net::prove_host(socket_.get()); }
  void close() noexcept;
  bool receive_as_guest(const Channel::Guest& guest, Deadline deadline);
  void resume() noexcept;
  // Zero after the close, since nothing more will be sent.
  std::size_t queued_bytes() const {
    return end_.is_closed() ? 0 : queued_bytes_.load(std::memory_order_relaxed);
  }
  Channel::Progress progress() const;
  // Reads, sends what senders left over, and calls the handlers, until closed.
  void run() noexcept;
  // Tells the peer why the connection ends, unless the socket is full or another thread is just
  // sending. For a connection that ends or never ran.
  void take_leave(const Error& why) noexcept;

 private:
  enum class Written { some, nothing, failed };

  void serve();
  bool queue_up(internal::OutgoingBytes bytes);
  bool is_lent() const;
  short wait(bool is_lent);
  void receive();
  bool receive_from_socket(const internal::FrameDecoder::Sink& sink);
  void receive_for(const Channel::Guest& guest, Deadline deadline);
  bool has_left_frames();
  void deliver_left_frames();
  void leave_as_guest(TimePoint lent_until) noexcept;
  void flush(int rounds_max);
  bool take_queue();
  Written write_some();
  void leave_to_thread();
  void fail(Error reason) noexcept;
  void fail_reading(const Error& error) noexcept;
  void shut_down() noexcept;
  void drop(internal::OutgoingBytes& bytes) noexcept;
  void drop_queue() noexcept;

  internal::ChannelEnd end_;
  const FileDescriptor socket_;
  net::Waker waker_;
  // Held by the thread that receives. It guards the decoder and left_frames_.
  std::mutex receiving_;
  internal::FrameDecoder decoder_;
  internal::FrameDecoder::Sink sink_;
  std::vector<Frame> left_frames_;  // those that a guest has received for the channel's thread
  std::atomic<bool> has_guest_{false};
  std::atomic<TimePoint> lent_until_{TimePoint()};

  std::atomic<std::size_t> queued_bytes_{0};
  std::atomic<std::uint64_t> sent_bytes_{0};  // passed to the system
  std::atomic<std::uint64_t> received_bytes_{0};
  std::atomic<bool> has_payload_sums_{false};
  Mutex mutex_;
  std::uint32_t next_number_ COHORT_GUARDED_BY(mutex_) = 0;
  internal::OutgoingBytes queue_ COHORT_GUARDED_BY(mutex_);
  bool is_writing_ COHORT_GUARDED_BY(mutex_) = false;
  // The channel's thread is the writer, and waits for the socket to take more.
  std::atomic<bool> is_thread_writing_{false};
  internal::OutgoingBytes sending_;  // the writer's
  const internal::BlockUser block_user_;
};

}  // namespace cohort::rpc::backends
