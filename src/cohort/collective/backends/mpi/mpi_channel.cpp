// SPDX-License-Identifier: Apache-2.0
#include "cohort/collective/backends/mpi/mpi_channel.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>

#include "cohort/collective/backends/tcp/transfer.h"

namespace cohort::collective::mpi {
namespace {

constexpr std::size_t kFrameBytesMax =
    tcp::kHeaderBytes + static_cast<std::size_t>(tcp::kSegmentBytesMax);
constexpr std::size_t kFarewellBytesMax = 16 << 10;
constexpr std::size_t kReasonBytesMax = 4096;
// So many that a member rarely waits for the other one to take some: between two of its turns MPI
// moves all of them. Memory that no message needs is never touched.
constexpr int kMessagesEach = 8;

void add_messages(std::vector<Message>& messages) {
  for (int i = 0; i < kMessagesEach; ++i) messages.emplace_back(kFrameBytesMax);
}

}  // namespace

MpiChannel::MpiChannel(World& world, SplitPath path, int peer, int tags)
    : world_(world), path_(std::move(path)), peer_(peer), tags_(tags) {
  add_messages(out_);
}

bool MpiChannel::is_sending() const {
  return std::any_of(out_.begin(), out_.end(),
                     [](const Message& message) { return message.is_under_way(); });
}

bool MpiChannel::send(tcp::Transfer& transfer) {
  if (has_ended_) return false;
  bool has_moved = false;
  Message* unused = nullptr;
  for (Message& message : out_) {
    if (message.is_under_way()) has_moved = message.is_done() || has_moved;
    if (message.has_failed()) has_ended_ = true;
    if (!message.is_under_way()) unused = &message;
  }
  if (unused == nullptr || has_ended_) return has_moved;
  frame_.header = tcp::FrameHeader();
  frame_.payload.clear();
  if (!transfer.next_frame(peer_, frame_)) return has_moved;
  write(*unused);
  // Few bytes are sent at once.
  has_ended_ = !unused->is_done() && unused->has_failed();
  return true;
}

void MpiChannel::write(Message& message) {
  frame_.header.sender = static_cast<std::uint32_t>(world_.rank());
  frame_.header.frame = num_frames_out_++;
  // MPI and its fabric see to it that values arrive as they are sent.
  tcp::seal(frame_.header, frame_.payload, /*checks_payload=*/false);
  std::byte* to = message.data();
  std::memcpy(to, &frame_.header, tcp::kHeaderBytes);
  to += tcp::kHeaderBytes;
  for (const iovec& piece : frame_.payload) {
    if (piece.iov_len > 0) std::memcpy(to, piece.iov_base, piece.iov_len);
    to += piece.iov_len;
  }
  message.send(static_cast<std::size_t>(to - message.data()), peer_, tags_);
}

bool MpiChannel::has_met_peer() {
  if (peer_tags_) return *peer_tags_ != World::kLeft;
  peer_tags_ = world_.take_hello(peer_, path_);
  if (!peer_tags_) return false;
  if (*peer_tags_ == World::kLeft) {
    farewell_ = tcp::Farewell();
    return false;
  }
  add_messages(in_);
  for (Message& message : in_) message.receive(peer_, *peer_tags_);
  farewell_in_.emplace_back(kFarewellBytesMax);
  farewell_in_.front().receive(peer_, *peer_tags_ + 1);
  return true;
}

bool MpiChannel::receive(tcp::Transfer& transfer) {
  if (!fault_.empty() || has_ended_ || !has_met_peer()) return false;
  Message& message = in_[next_in_];
  if (!message.is_done()) {
    has_ended_ = message.has_failed();
    return false;
  }
  if (!has_header_ && !begin_frame(message, message.data())) return false;
  frame_.payload.clear();
  tcp::Pieces& into = frame_.payload;
  const tcp::Acceptance acceptance = transfer.accept(peer_, header_, into);
  if (acceptance == tcp::Acceptance::hold) return false;
  if (acceptance == tcp::Acceptance::refuse) {
    fault_ = "a frame that does not belong to the call";
    return false;
  }
  const std::byte* from = message.data() + tcp::kHeaderBytes;
  for (const iovec& piece : into) {
    if (piece.iov_len > 0) std::memcpy(piece.iov_base, from, piece.iov_len);
    from += piece.iov_len;
  }
  has_header_ = false;
  num_frames_in_ += 1;
  message.receive(peer_, *peer_tags_);
  next_in_ = (next_in_ + 1) % in_.size();
  if (!transfer.received(peer_, header_)) fault_ = "a frame with a wrong content";
  return true;
}

bool MpiChannel::begin_frame(const Message& message, const std::byte* data) {
  if (message.length() < tcp::kHeaderBytes) {
    fault_ = "bytes that are no frame";
    return false;
  }
  std::memcpy(&header_, data, tcp::kHeaderBytes);
  if (const char* const fault = tcp::fault_of(header_, peer_, num_frames_in_)) {
    fault_ = fault;
  } else if (message.length() != tcp::kHeaderBytes + header_.length) {
    fault_ = "a frame of another length";
  }
  has_header_ = fault_.empty();
  return has_header_;
}

void MpiChannel::look_for_farewell(int size) {
  if (farewell_ || has_ended_ || !has_met_peer()) return;
  Message& message = farewell_in_.front();
  if (!message.is_done()) return;
  try {
    farewell_ = tcp::decoded_farewell(std::span(message.data(), message.length()), size);
    if (!farewell_) fault_ = "a part of a message about the end";
  } catch (const Error&) {
    fault_ = "a message about the end that cannot be read";
  }
}

void MpiChannel::close_with(const tcp::Farewell& farewell) noexcept {
  if (farewell.code != ErrorCode::aborted) World::note_failure();
  try {
    tcp::Farewell last = farewell;
    if (last.why.size() > kReasonBytesMax) last.why.resize(kReasonBytesMax);
    const Bytes bytes = tcp::encoded(last);
    if (bytes.size() > kFarewellBytesMax) return;
    Message message(bytes.size());
    std::memcpy(message.data(), bytes.data(), bytes.size());
    message.send(bytes.size(), peer_, tags_ + 1);
  } catch (...) {
    // Without memory for it the other member waits until its deadline.
  }
}

}  // namespace cohort::collective::mpi
