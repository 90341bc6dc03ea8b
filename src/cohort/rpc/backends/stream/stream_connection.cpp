// SPDX-License-Identifier: Apache-2.0
#include "cohort/rpc/backends/stream/stream_connection.h"

#include <linux/sockios.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <utility>

#include "cohort/core/log.h"
#include "cohort/core/system_error.h"
#include "cohort/net/socket.h"

namespace cohort::rpc::backends {
namespace {

constexpr std::size_t kPartsMax = 64;
// How often a sender writes before it leaves the rest to the channel's thread, since the rest may
// be only other senders' frames.
constexpr int kSenderRounds = 16;
// The channel's thread delays its answers up to this size, to send them together.
constexpr std::size_t kJoinedBytesMax = 2048;
// How often the channel's thread writes before it looks for incoming bytes again.
constexpr int kThreadRounds = 4;
constexpr int kReceiveRounds = 16;
// How long the channel's thread waits for the next guest. A frame that no guest awaits may come so
// much later.
constexpr std::chrono::milliseconds kLentTime{2};

}  // namespace

StreamConnection::StreamConnection(FileDescriptor socket, internal::PeerName peer,
                                   std::size_t frame_bytes_max)
    : end_(std::move(peer)),
      socket_(std::move(socket)),
      decoder_(frame_bytes_max),
      sink_([this](Frame frame) { end_.deliver(std::move(frame)); }) {
  net::tune(socket_.get(), net::Unacknowledged::for_a_minute);
}

void StreamConnection::send(Frame frame) {
  internal::OutgoingBytes bytes;
  bytes.append(std::move(frame), has_payload_sums_.load(std::memory_order_relaxed));
  end_.check_open();
  const bool is_writer = queue_up(std::move(bytes));
  if (!end_.is_own_thread()) {
    if (is_writer) flush(kSenderRounds);
    return;
  }
  if (!is_writer && !is_thread_writing_.load(std::memory_order_acquire)) return;
  // Small answers to frames that arrived together are sent together.
  if (queued_bytes() < kJoinedBytesMax) return leave_to_thread();
  flush(kThreadRounds);
}

// Returns whether the caller is the writer from now on.
bool StreamConnection::queue_up(internal::OutgoingBytes bytes) {
  Lock lock(mutex_);
  bytes.seal(next_number_++);
  queued_bytes_.fetch_add(bytes.size_bytes(), std::memory_order_relaxed);
  queue_.append(std::move(bytes));
  return !std::exchange(is_writing_, true);
}

// For the writer: sends until the queue is empty (then this thread stops being the writer), the
// socket is full, or the rounds are used up.
void StreamConnection::flush(int rounds_max) {
  for (int round = 0; round < rounds_max; ++round) {
    if (sending_.is_empty() && !take_queue()) return;
    switch (write_some()) {
      case Written::some:
        break;
      case Written::nothing:
        return leave_to_thread();
      case Written::failed:  // remains the writer, so that no other thread tries again
        drop(sending_);
        return;
    }
  }
  leave_to_thread();
}

bool StreamConnection::take_queue() {
  Lock lock(mutex_);
  if (queue_.is_empty()) {
    is_writing_ = false;
    is_thread_writing_.store(false, std::memory_order_relaxed);
    return false;
  }
  sending_.append(std::move(queue_));
  return true;
}

StreamConnection::Written StreamConnection::write_some() {
  std::array<std::span<const std::byte>, kPartsMax> parts;
  std::array<iovec, kPartsMax> vectors;
  const std::size_t count = sending_.front(parts);
  for (std::size_t i = 0; i < count; ++i) {
    vectors[i] = {const_cast<std::byte*>(parts[i].data()), parts[i].size()};
  }
  msghdr message{};
  message.msg_iov = vectors.data();
  message.msg_iovlen = count;
  const ssize_t sent = sendmsg(socket_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent >= 0) {
    sent_bytes_.fetch_add(static_cast<std::uint64_t>(sent), std::memory_order_relaxed);
    queued_bytes_.fetch_sub(static_cast<std::size_t>(sent), std::memory_order_relaxed);
    sending_.consume(static_cast<std::size_t>(sent));
    return Written::some;
  }
  if (errno == EAGAIN || errno == EWOULDBLOCK) return Written::nothing;
  if (errno == EINTR) return Written::some;
  fail(internal::lost_error(end_.name(), text_of_errno(errno)));
  return Written::failed;
}

Channel::Progress StreamConnection::progress() const {
  int unacknowledged = 0;
  if (ioctl(socket_.get(), SIOCOUTQ, &unacknowledged) != 0) unacknowledged = 0;
  const auto left = static_cast<std::uint64_t>(unacknowledged);
  const std::uint64_t sent = sent_bytes_.load(std::memory_order_relaxed);
  return {.received = received_bytes_.load(std::memory_order_relaxed),
          .delivered = sent > left ? sent - left : 0,
          .underway = queued_bytes() + left};
}

void StreamConnection::leave_to_thread() {
  // Releases sending_ to the thread, which acquires it through this flag.
  is_thread_writing_.store(true, std::memory_order_release);
  if (!end_.is_own_thread()) waker_.wake();
}

void StreamConnection::run() noexcept {
  end_.enter_thread();
  try {
    serve();
  } catch (...) {
    fail_reading(current_error());
  }
  shut_down();
  drop_queue();
  end_.finish();
}

void StreamConnection::take_leave(const Error& why) noexcept {
  try {
    internal::OutgoingBytes bytes;
    bytes.append(farewell_frame(why), false);
    if (queue_up(std::move(bytes)) || is_thread_writing_.load(std::memory_order_acquire))
      flush(kThreadRounds);
  } catch (...) {
    log_debug("cannot take leave of ", end_.text(), ": ", current_error().what());
  }
}

void StreamConnection::serve() {
  while (!end_.is_closed()) {
    const bool is_lent = this->is_lent();
    const short events = wait(is_lent);
    deliver_left_frames();
    if (!is_lent && (events & (POLLIN | POLLHUP | POLLERR))) receive();
    if (is_thread_writing_.load(std::memory_order_acquire) && !end_.is_closed()) {
      flush(kThreadRounds);
    }
  }
}

// The socket's events; 0 if something else woke the thread. Frees memory of messages that is not
// used any more, which nobody else does while no message comes.
short StreamConnection::wait(bool is_lent) {
  const bool is_writer = is_thread_writing_.load(std::memory_order_acquire);
  const auto interest = static_cast<short>((is_lent ? 0 : POLLIN) | (is_writer ? POLLOUT : 0));
  std::array<pollfd, 2> entries{pollfd{interest == 0 ? -1 : socket_.get(), interest, 0},
                                pollfd{waker_.fd(), POLLIN, 0}};
  const TimePoint now = Clock::system().now();
  Deadline until = internal::free_unused_blocks(now);
  if (is_lent) until = Deadline(std::min(until.time(), now + kLentTime));
  if (poll(entries.data(), entries.size(), net::poll_milliseconds(until)) < 0)
    return 0;  // EINTR: look again
  if (entries[1].revents != 0) waker_.drain();
  return entries[0].revents;
}

void StreamConnection::receive() {
  const std::lock_guard lock(receiving_);
  if (has_guest_.load()) return;
  for (int round = 0; round < kReceiveRounds && !end_.is_closed(); ++round) {
    if (!receive_from_socket(sink_) || is_thread_writing_.load(std::memory_order_relaxed)) return;
  }
}

// Returns whether there may be more. The caller holds receiving_.
bool StreamConnection::receive_from_socket(const internal::FrameDecoder::Sink& sink) {
  while (true) {
    std::array<iovec, 2> vectors;
    std::size_t asked = 0;
    std::size_t count = 0;
    for (const std::span<std::byte> place : decoder_.space()) {
      asked += place.size();
      if (!place.empty()) vectors[count++] = {place.data(), place.size()};
    }
    msghdr message{};
    message.msg_iov = vectors.data();
    message.msg_iovlen = count;
    const ssize_t got = recvmsg(socket_.get(), &message, MSG_DONTWAIT);
    if (got > 0) {
      received_bytes_.fetch_add(static_cast<std::uint64_t>(got), std::memory_order_relaxed);
      decoder_.commit(static_cast<std::size_t>(got), sink);
      return static_cast<std::size_t>(got) == asked;
    }
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return false;
    fail(internal::lost_error(end_.name(),
                              got == 0 ? "it closed the connection" : text_of_errno(errno)));
    return false;
  }
}

bool StreamConnection::is_lent() const {
  const TimePoint until = lent_until_.load();
  return has_guest_.load() || (until != TimePoint() && Clock::system().now() < until);
}

bool StreamConnection::receive_as_guest(const Channel::Guest& guest, Deadline deadline) {
  if (has_guest_.exchange(true)) return false;
  // After this the channel's thread does not receive, since it looks for a guest under the lock.
  if (std::unique_lock(receiving_, std::try_to_lock).owns_lock()) {
    receive_for(guest, deadline);
    leave_as_guest(Clock::system().now() + kLentTime);
    if (has_left_frames()) resume();
    return true;
  }
  leave_as_guest(TimePoint());
  waker_.wake();
  return false;
}

void StreamConnection::leave_as_guest(TimePoint lent_until) noexcept {
  lent_until_.store(lent_until);
  has_guest_.store(false);
}

void StreamConnection::receive_for(const Channel::Guest& guest, Deadline deadline) {
  // The frames after one for the channel's thread are left to it, too, so that none overtakes it.
  const internal::FrameDecoder::Sink sink = [&](Frame frame) {
    if (!left_frames_.empty() || !guest.take(frame)) left_frames_.push_back(std::move(frame));
  };
  while (!end_.is_closed() && !guest.is_done()) {
    pollfd entry{socket_.get(), POLLIN, 0};
    const int ready = poll(&entry, 1, net::poll_milliseconds(deadline));
    if (ready == 0 && deadline.has_expired()) return;
    if (ready <= 0) continue;  // interrupted
    const std::lock_guard lock(receiving_);
    try {
      while (left_frames_.empty() && !guest.is_done() && receive_from_socket(sink)) {
      }
    } catch (...) {
      fail_reading(current_error());
    }
    if (!left_frames_.empty()) return;
  }
}

// The thread may be in wait(), for up to kLentTime.
void StreamConnection::resume() noexcept {
  if (has_guest_.load() || lent_until_.load() == TimePoint()) return;
  if (lent_until_.exchange(TimePoint()) != TimePoint()) waker_.wake();
}

bool StreamConnection::has_left_frames() {
  const std::lock_guard lock(receiving_);
  return !left_frames_.empty();
}

void StreamConnection::deliver_left_frames() {
  const std::lock_guard lock(receiving_);  // no guest receives meanwhile, as in receive()
  for (Frame& frame : std::exchange(left_frames_, {})) end_.deliver(std::move(frame));
}

void StreamConnection::fail_reading(const Error& error) noexcept {
  end_.set_closed(internal::reading_failed(end_.name(), error));
  if (error.code() == ErrorCode::data_loss) take_leave(internal::broken_frame_farewell(error));
  shut_down();
}

void StreamConnection::close() noexcept {
  try {
    // Sends the answers that the closing handler has just queued.
    if (end_.is_own_thread() && is_thread_writing_.load(std::memory_order_relaxed))
      flush(kThreadRounds);
  } catch (...) {
    log_debug("the last answers to ", end_.text(), " were lost: ", current_error().what());
  }
  fail(end_.cancelled());
}

void StreamConnection::fail(Error reason) noexcept {
  if (end_.set_closed(std::move(reason))) shut_down();
}

// Also wakes the channel's thread from poll().
void StreamConnection::shut_down() noexcept {
  ::shutdown(socket_.get(), SHUT_RDWR);
  waker_.wake();
}

// Subtracts only what it releases, since a sender may be subtracting what it has just sent.
void StreamConnection::drop(internal::OutgoingBytes& bytes) noexcept {
  queued_bytes_.fetch_sub(bytes.size_bytes(), std::memory_order_relaxed);
  bytes = internal::OutgoingBytes();
}

// Releases the tensors that were not sent. A sender that is just writing releases its own.
void StreamConnection::drop_queue() noexcept {
  Lock lock(mutex_);
  drop(queue_);
  if (is_thread_writing_.load(std::memory_order_acquire)) drop(sending_);
}

}  // namespace cohort::rpc::backends
