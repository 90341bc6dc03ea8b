// SPDX-License-Identifier: Apache-2.0
#include "cohort/collective/backends/tcp/connection.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "cohort/collective/backends/tcp/transfer.h"

namespace cohort::collective::tcp {
namespace {

constexpr std::size_t kInboxBytes = kHeaderBytes + static_cast<std::size_t>(kInlineBytesMax);
constexpr std::size_t kPiecesMax = 64;  // of one system call
constexpr int kReadsAtCloseMax = 64;    // the other member may never stop sending

bool would_block(int error) { return error == EAGAIN || error == EWOULDBLOCK || error == EINTR; }

// Removes the first `bytes` of the pieces from index `first` on; returns the new first index.
std::size_t advance(Pieces& pieces, std::size_t first, std::size_t bytes) {
  while (first < pieces.size() && bytes >= pieces[first].iov_len) bytes -= pieces[first++].iov_len;
  if (first < pieces.size()) {
    pieces[first].iov_base = static_cast<std::byte*>(pieces[first].iov_base) + bytes;
    pieces[first].iov_len -= bytes;
  }
  return first;
}

}  // namespace

Connection::Connection(int self, int peer, FileDescriptor frames, FileDescriptor farewell)
    : self_(self),
      peer_(peer),
      frames_(std::move(frames)),
      farewell_socket_(std::move(farewell)),
      inbox_(std::make_unique_for_overwrite<std::byte[]>(kInboxBytes)) {
  const int yes = 1;  // fails for sockets that are not TCP, which do not delay
  ::setsockopt(frames_.get(), IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
  ::setsockopt(farewell_socket_.get(), IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
}

bool Connection::send(Transfer& transfer) {
  if (cannot_send_) return false;
  if (!is_sending_) {
    out_.header = FrameHeader();
    out_.payload.clear();
    if (!transfer.next_frame(peer_, out_)) return false;
    out_.header.sender = static_cast<std::uint32_t>(self_);
    out_.header.frame = num_frames_out_++;
    seal(out_.header, out_.payload);
    unsent_.clear();
    unsent_.push_back({&out_.header, kHeaderBytes});
    unsent_.append(out_.payload.begin(), out_.payload.end());
    num_sent_pieces_ = 0;
    is_sending_ = true;
  }
  bool has_moved = false;
  while (is_sending_) {
    msghdr message{};
    message.msg_iov = unsent_.data() + num_sent_pieces_;
    message.msg_iovlen = std::min(kPiecesMax, unsent_.size() - num_sent_pieces_);
    const ssize_t sent = ::sendmsg(frames_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0) {
      // A farewell may still be there for reading, so receive() decides about the end.
      cannot_send_ = !would_block(errno);
      return has_moved;
    }
    has_moved = true;
    num_sent_pieces_ = advance(unsent_, num_sent_pieces_, static_cast<std::size_t>(sent));
    is_sending_ = num_sent_pieces_ < unsent_.size();
  }
  return has_moved;
}

bool Connection::receive(Transfer& transfer) {
  if (!fault_.empty()) return false;
  if (consume_inbox(transfer)) return true;
  if (is_holding() || has_ended_ || !fault_.empty()) return false;
  if (!read_socket()) return false;
  consume_inbox(transfer);
  return true;
}

// Returns whether frames were completed.
bool Connection::consume_inbox(Transfer& transfer) {
  bool has_moved = false;
  while (fault_.empty()) {
    if (!is_receiving_ && !begin_payload(transfer)) break;
    while (inbox_begin_ < inbox_end_ && num_filled_pieces_ < missing_.size()) {
      const iovec& piece = missing_[num_filled_pieces_];
      const std::size_t bytes = std::min(piece.iov_len, inbox_end_ - inbox_begin_);
      if (bytes > 0) std::memcpy(piece.iov_base, inbox_.get() + inbox_begin_, bytes);
      inbox_begin_ += bytes;
      num_filled_pieces_ = advance(missing_, num_filled_pieces_, bytes);
    }
    if (num_filled_pieces_ < missing_.size()) break;
    if (!finish_frame(transfer)) break;
    has_moved = true;
  }
  return has_moved;
}

bool Connection::begin_payload(Transfer& transfer) {
  if (!has_header_) {
    if (inbox_end_ - inbox_begin_ < kHeaderBytes) return false;
    std::memcpy(&header_, inbox_.get() + inbox_begin_, kHeaderBytes);
    inbox_begin_ += kHeaderBytes;
    if (const char* const fault = fault_of(header_, peer_, num_frames_in_)) {
      fault_ = fault;
      return false;
    }
    has_header_ = true;
  }
  into_.clear();
  switch (transfer.accept(peer_, header_, into_)) {
    case Acceptance::hold:
      return false;
    case Acceptance::refuse:
      fault_ = "a frame that does not belong to the call";
      return false;
    case Acceptance::take:
      break;
  }
  missing_ = into_;
  num_filled_pieces_ = advance(missing_, 0, 0);
  is_receiving_ = true;
  return true;
}

bool Connection::finish_frame(Transfer& transfer) {
  if (checksum_of(into_) != header_.payload_checksum) {
    fault_ = "values with a wrong checksum";
    return false;
  }
  is_receiving_ = false;
  has_header_ = false;
  num_frames_in_ += 1;
  if (!transfer.received(peer_, header_)) fault_ = "a frame with a wrong content";
  return fault_.empty();
}

bool Connection::read_socket() {
  if (inbox_begin_ > 0) {
    // Only a part of a header can be left.
    std::memmove(inbox_.get(), inbox_.get() + inbox_begin_, inbox_end_ - inbox_begin_);
    inbox_end_ -= inbox_begin_;
    inbox_begin_ = 0;
  }
  c10::SmallVector<iovec, 16> into;
  std::size_t for_payload = 0;
  if (is_receiving_) {
    const std::size_t last = std::min(missing_.size(), num_filled_pieces_ + kPiecesMax - 1);
    for (std::size_t i = num_filled_pieces_; i < last; ++i) {
      into.push_back(missing_[i]);
      for_payload += missing_[i].iov_len;
    }
    // The next header as well, but not its payload, which would have to be copied.
    if (last == missing_.size()) into.push_back({inbox_.get(), kHeaderBytes});
  } else {
    into.push_back({inbox_.get() + inbox_end_, kInboxBytes - inbox_end_});
  }
  msghdr message{};
  message.msg_iov = into.data();
  message.msg_iovlen = into.size();
  const ssize_t got = ::recvmsg(frames_.get(), &message, MSG_DONTWAIT);
  if (got <= 0) {
    has_ended_ = got == 0 || !would_block(errno);
    return false;
  }
  const auto bytes = static_cast<std::size_t>(got);
  if (is_receiving_)
    num_filled_pieces_ = advance(missing_, num_filled_pieces_, std::min(bytes, for_payload));
  inbox_end_ += bytes - std::min(bytes, for_payload);
  return true;
}

void Connection::look_for_farewell(int size) {
  while (!farewell_ && !has_farewell_ended_) {
    std::byte bytes[512];
    const ssize_t got = ::recv(farewell_socket_.get(), bytes, sizeof bytes, MSG_DONTWAIT);
    if (got <= 0) {
      has_farewell_ended_ = got == 0 || !would_block(errno);
      // After an orderly end, frames that have arrived may still be read.
      is_unreachable_ = got < 0 && has_farewell_ended_;
      return;
    }
    farewell_bytes_.insert(farewell_bytes_.end(), bytes, bytes + got);
    try {
      farewell_ = decoded_farewell(farewell_bytes_, size);
    } catch (const Error&) {
      fault_ = "a message about the end that cannot be read";
      has_farewell_ended_ = true;
    }
  }
}

void Connection::close_with(const Farewell& farewell) noexcept {
  try {
    const Bytes bytes = encoded(farewell);
    // The socket has sent nothing before, so there is room.
    ::send(farewell_socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  } catch (...) {
    // Without memory for it the other member sees the end of the connection.
  }
  // Closing a TCP socket that has unread bytes resets the connection, and what the other member has
  // not read yet may be lost.
  for (const FileDescriptor* const socket : {&frames_, &farewell_socket_}) {
    ::shutdown(socket->get(), SHUT_WR);
    for (int i = 0; i < kReadsAtCloseMax; ++i) {
      if (::recv(socket->get(), inbox_.get(), kInboxBytes, MSG_DONTWAIT) <= 0) break;
    }
  }
  frames_ = FileDescriptor();
  farewell_socket_ = FileDescriptor();
}

}  // namespace cohort::collective::tcp
