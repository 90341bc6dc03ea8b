// SPDX-License-Identifier: Apache-2.0
// The sockets between this member and another one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "cohort/collective/backends/tcp/channel.h"
#include "cohort/collective/backends/tcp/frame.h"
#include "cohort/core/file_descriptor.h"

namespace cohort::collective::tcp {

// Two sockets, which do not block: one for the frames of calls, and one for the farewell, which so
// arrives although the other member does not read the frames before it. Since it is idle, the
// system also finds out there within a minute that the other host is lost: it looks for that only
// where nothing waits for an acknowledgement. A host whose process reads nothing still answers.
// Thread-compatible.
class Connection final : public Channel {
 public:
  Connection(int self, int peer, FileDescriptor frames, FileDescriptor farewell);

  bool send(Transfer& transfer) override;
  bool receive(Transfer& transfer) override;
  void look_for_farewell(int size) override;
  void close_with(const Farewell& farewell) noexcept override;

  bool is_sending() const override { return is_sending_; }
  // Whether a frame waits for Transfer to accept it.
  bool is_holding() const { return has_header_ && !is_receiving_; }
  bool has_ended() const override { return has_ended_ || is_unreachable_; }
  bool has_farewell_ended() const override { return has_farewell_ended_; }
  int frames_fd() const { return frames_.get(); }
  int farewell_fd() const { return farewell_socket_.get(); }

 private:
  bool consume_inbox(Transfer& transfer);
  bool begin_payload(Transfer& transfer);
  bool read_socket();
  bool finish_frame(Transfer& transfer);

  const int self_;
  const int peer_;
  FileDescriptor frames_;
  FileDescriptor farewell_socket_;

  Frame out_ = {};
  Pieces unsent_ = {};  // the rest of the frame, with its header
  std::size_t num_sent_pieces_ = 0;
  std::uint64_t num_frames_out_ = 0;
  bool is_sending_ = false;
  bool cannot_send_ = false;

  const std::unique_ptr<std::byte[]> inbox_;
  std::size_t inbox_begin_ = 0;
  std::size_t inbox_end_ = 0;
  FrameHeader header_ = {};
  Pieces into_ = {};
  Pieces missing_ = {};  // the rest of into_
  std::size_t num_filled_pieces_ = 0;
  std::uint64_t num_frames_in_ = 0;
  bool has_header_ = false;
  bool is_receiving_ = false;
  bool has_ended_ = false;

  Bytes farewell_bytes_ = {};
  bool has_farewell_ended_ = false;
  bool is_unreachable_ = false;  // the socket for the farewell broke
};

}  // namespace cohort::collective::tcp
