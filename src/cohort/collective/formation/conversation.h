// SPDX-License-Identifier: Apache-2.0
// Asks one process, over a connection that stays open for the next question.
#pragma once

#include <poll.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cohort/collective/formation/message.h"
#include "cohort/core/clock.h"
#include "cohort/core/file_descriptor.h"
#include "cohort/net/name_lookup.h"

namespace cohort::collective::formation {

// Never blocks. Used only from one thread.
class Conversation {
 public:
  enum class State : std::uint8_t {
    idle,      // nothing was asked
    pending,   // there is no answer yet
    answered,  // reply()
    refused,   // nobody listens at the address: the process has ended, or has not begun
    lost,      // problem(): the connection broke, an answer was damaged, or the host cannot be
               // reached
  };

  explicit Conversation(std::string address) : address_(std::move(address)) {}

  // Sends a question; forgets one that has no answer yet.
  void ask(Bytes message);
  // Does what is possible without waiting. Throws resource_exhausted if there is no file descriptor
  // left.
  State advance();
  State state() const { return state_; }
  // Whether the system has taken the whole question, or it cannot be sent.
  bool has_sent() const { return state_ != State::pending || step_ == Step::reading; }
  TimePoint asked_at() const { return asked_at_; }
  // Whether the question has waited so long. Call it often: the time in which this process itself
  // did not run does not count.
  bool has_waited(Duration duration, TimePoint now);
  const Reply& reply() const { return reply_; }
  const std::string& problem() const { return problem_; }
  // In State::lost: whether nothing came from the host at all, so that the process may live.
  bool is_silent() const { return is_silent_; }
  // Where the answer came from, or which addresses have refused a connection: address_hash().
  const std::vector<std::uint64_t>& addresses() const { return addresses_; }
  // The event that advance() waits for; a negative descriptor if it waits for a name's lookup.
  pollfd awaited() const;
  // Closes the connection, as if it were lost.
  void give_up(std::string problem);
  // The connection, after an answer.
  FileDescriptor take_socket();

 private:
  enum class Step : std::uint8_t { none, looking_up, connecting, writing, reading };

  void connect();
  void connect_next(int error);
  void note_failure(int error);
  void begin_writing();
  bool look_up();
  bool finish_connecting();
  bool write();
  bool read();
  bool receive(std::span<std::byte> into);
  void break_off(int error);
  void end(State state, std::string problem, bool is_silent = false);

  const std::string address_;
  State state_ = State::idle;
  Step step_ = Step::none;
  FileDescriptor socket_;
  std::shared_ptr<net::Lookup> lookup_;
  TimePoint looked_up_at_{};
  bool is_address_good_ = false;  // it has been connected to
  std::shared_ptr<const addrinfo> found_;
  const addrinfo* next_ = nullptr;
  const addrinfo* current_ = nullptr;  // the one before it
  bool speaks_protocol_ = false;       // it has answered
  int num_foreign_ = 0;                // answers of another protocol or version
  bool is_silent_ = false;
  bool is_reused_ = false;  // the connection has had an answer before
  bool are_all_refused_ = true;
  std::vector<std::uint64_t> addresses_;
  Bytes message_;
  std::size_t num_written_ = 0;
  std::size_t num_read_ = 0;
  std::array<std::byte, Header::kBytes> header_bytes_{};
  std::optional<Header> header_;
  Bytes body_;
  Reply reply_;
  std::string problem_;
  TimePoint asked_at_{};
  TimePoint looked_at_{};
  Duration waited_{};
};

// Waits until one of them can advance, or the deadline; then all advance. `waker`: a descriptor
// that ends the wait too, or -1.
void advance_all(std::span<Conversation* const> conversations, int waker, Deadline deadline);

}  // namespace cohort::collective::formation
