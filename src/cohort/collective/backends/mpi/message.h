// SPDX-License-Identifier: Apache-2.0
// One message that is under way.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace cohort::collective::mpi {

// Owns the memory of a message. Nobody can take a message back from MPI for sure, so that memory
// lives on if this object is destroyed before MPI is done with it: it is never a caller's.
// Thread-compatible. No call blocks; after the end of MPI nothing moves any more.
class Message {
 public:
  explicit Message(std::size_t capacity);
  ~Message();
  Message(Message&&) noexcept;
  Message& operator=(Message&&) = delete;

  std::byte* data();
  // Sends the first `bytes`.
  void send(std::size_t bytes, int to, int tag);
  // `from`: kFromAny or a rank.
  static constexpr int kFromAny = -1;
  void receive(int from, int tag);
  // Whether it is sent or received now. False for a message that is not under way.
  bool is_done();
  bool is_under_way() const { return state_ == State::under_way; }
  bool has_failed() const { return state_ == State::failed; }
  // Both are known for a received message only.
  std::size_t length() const { return length_; }
  int source() const { return source_; }

  // Frees the memory of destroyed messages with which MPI is done by now. Thread-safe.
  static void reap() noexcept;

 private:
  struct Slot;
  enum class State : std::uint8_t { idle, under_way, done, failed };
  void note(int outcome);

  const std::size_t capacity_;
  std::unique_ptr<Slot> slot_;
  State state_ = State::idle;
  bool is_receive_ = false;
  std::size_t length_ = 0;
  int source_ = kFromAny;
};

}  // namespace cohort::collective::mpi
