// SPDX-License-Identifier: Apache-2.0
// The sockets between this member and another one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "cohort/collective/backends/tcp/frame.h"
#include "cohort/core/detail/file_descriptor.h"

namespace cohort::collective::tcp {

// Values up to this size can travel with the offer of a call.
inline constexpr std::int64_t kInlineBytesMax = 64 << 10;
// A segment stays in the second-level cache between its checksum and its copy.
inline constexpr std::int64_t kSegmentBytesMax = 256 << 10;

struct Frame {
  FrameHeader header = {};
  Pieces payload = {};
};

enum class Acceptance : std::uint8_t { take, hold, refuse };

// What one call sends and receives. Used only from the thread that makes the call.
class Traffic {
 public:
  virtual ~Traffic() = default;
  // The next frame for a member; false if there is none now. The memory of the payload must not
  // change before the next call of this for the same member.
  virtual bool next_frame(int to, Frame& frame) = 0;
  // Appends where the payload of this frame goes, exactly header.length bytes. `hold`: this frame
  // and those after it wait.
  virtual Acceptance accept(int from, const FrameHeader& header, Pieces& into) = 0;
  // The payload is there, and its checksum is right. False if its content is wrong.
  virtual bool received(int from, const FrameHeader& header) = 0;
};

// Two sockets, which do not block: one for the frames of calls, and one for the farewell, which so
// arrives although the other member does not read the frames before it. Thread-compatible.
class Connection {
 public:
  Connection(int self, int peer, FileDescriptor frames, FileDescriptor farewell);

  // Both return whether bytes moved. send() returns after a frame at the latest, receive() after
  // one system call.
  bool send(Traffic& traffic);
  bool receive(Traffic& traffic);
  // Reads the farewell of the other member, if it is there.
  void look_for_farewell(int size);
  // Sends this member's farewell and closes the connection.
  void close_with(const Farewell& farewell) noexcept;

  bool is_sending() const { return is_sending_; }
  // Whether a frame waits for Traffic to accept it.
  bool is_holding() const { return has_header_ && !is_receiving_; }
  // The other member sends no more frames.
  bool has_ended() const { return has_ended_; }
  bool has_farewell_ended() const { return has_farewell_ended_; }
  // What was wrong with the bytes of the other member; empty if nothing.
  const std::string& fault() const { return fault_; }
  const std::optional<Farewell>& farewell() const { return farewell_; }
  int frames_fd() const { return frames_.get(); }
  int farewell_fd() const { return farewell_socket_.get(); }

 private:
  bool consume_inbox(Traffic& traffic);
  bool begin_payload(Traffic& traffic);
  bool read_socket();
  bool finish_frame(Traffic& traffic);

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
  std::optional<Farewell> farewell_ = {};
  bool has_farewell_ended_ = false;
  std::string fault_ = {};
};

}  // namespace cohort::collective::tcp
