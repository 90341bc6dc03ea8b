// SPDX-License-Identifier: Apache-2.0
#include "cohort/rpc/backends/grpc/grpc_connection.h"

#include <algorithm>
#include <array>
#include <utility>

namespace cohort::rpc::backends {
namespace {

constexpr std::size_t kChunkBytesMax = std::size_t{512} << 10;

}  // namespace

GrpcConnection::GrpcConnection(internal::PeerName peer, std::size_t frame_bytes_max)
    : end_(std::move(peer)), decoder_(frame_bytes_max) {}

void GrpcConnection::send(Frame frame) {
  internal::OutgoingBytes bytes;
  bytes.append(std::move(frame), has_payload_sums_.load(std::memory_order_relaxed));
  end_.check_open();
  Lock lock(mutex_);
  bytes.seal(next_number_++);
  queued_bytes_.fetch_add(bytes.size_bytes(), std::memory_order_relaxed);
  queue_.append(std::move(bytes));
  changed_.notify_all();
}

void GrpcConnection::run(ByteStream& stream) noexcept {
  end_.enter_thread();
  {
    Lock lock(mutex_);
    stream_ = &stream;
  }
  try {
    std::thread writer = internal::start_thread([this, &stream] { write_all(stream); });
    try {
      read_all(stream);
    } catch (...) {
      close_with(internal::reading_failed(end_.name(), current_error()));
    }
    close_with(internal::lost_error(end_.name(), "it closed the connection"));
    wake_writer();  // a handler that threw closed without waking it
    stream.cancel();
    writer.join();
  } catch (...) {
    close_with(current_error());
  }
  {
    Lock lock(mutex_);
    stream_ = nullptr;
    queue_ = internal::OutgoingBytes();
    queued_bytes_.store(0, std::memory_order_relaxed);
  }
  end_.finish();
  Lock lock(mutex_);
  is_done_ = true;
  changed_.notify_all();
}

void GrpcConnection::abandon() noexcept {
  close();
  Lock lock(mutex_);
  is_done_ = true;
  changed_.notify_all();
}

void GrpcConnection::wait_done() {
  if (end_.is_own_thread()) return;
  Lock lock(mutex_);
  changed_.wait(mutex_, Deadline(), [this]() COHORT_REQUIRES(mutex_) { return is_done_; });
}

void GrpcConnection::read_all(ByteStream& stream) {
  const auto sink = [this](Frame frame) { end_.deliver(std::move(frame)); };
  std::string bytes;
  while (!end_.is_closed() && stream.read(bytes)) {
    received_bytes_.fetch_add(bytes.size(), std::memory_order_relaxed);
    decoder_.feed(std::as_bytes(std::span(bytes.data(), bytes.size())), sink);
  }
}

void GrpcConnection::write_all(ByteStream& stream) noexcept {
  try {
    std::string chunk;
    while (next_chunk(chunk)) {
      const std::size_t size = chunk.size();
      if (!stream.write(std::move(chunk))) return;  // the reader notices the end too
      sent_bytes_.fetch_add(size, std::memory_order_relaxed);
      queued_bytes_.fetch_sub(size, std::memory_order_relaxed);
    }
  } catch (...) {
    close_with(current_error());
  }
}

// Waits for bytes to write and returns them in `chunk`; false when closed. Frees memory of messages
// that is not used any more while it waits.
bool GrpcConnection::next_chunk(std::string& chunk) {
  chunk.clear();
  Lock lock(mutex_);
  const auto may_go_on = [this]() COHORT_REQUIRES(mutex_) {
    return !queue_.is_empty() || end_.is_closed();
  };
  while (!may_go_on())
    changed_.wait(mutex_, internal::free_unused_blocks(Clock::system().now()), may_go_on);
  if (end_.is_closed()) return false;
  std::array<std::span<const std::byte>, 16> parts;
  const std::size_t count = queue_.front(parts);
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t size = std::min(parts[i].size(), kChunkBytesMax - chunk.size());
    chunk.append(reinterpret_cast<const char*>(parts[i].data()), size);
  }
  queue_.consume(chunk.size());
  return true;
}

void GrpcConnection::wake_writer() {
  Lock lock(mutex_);
  changed_.notify_all();
}

void GrpcConnection::close_with(Error reason) noexcept {
  if (!end_.set_closed(std::move(reason))) return;
  Lock lock(mutex_);
  if (stream_ != nullptr) stream_->cancel();
  changed_.notify_all();
}

}  // namespace cohort::rpc::backends
