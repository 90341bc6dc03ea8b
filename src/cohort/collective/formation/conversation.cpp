// SPDX-License-Identifier: Apache-2.0
#include "cohort/collective/formation/conversation.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "cohort/core/error.h"
#include "cohort/core/system_error.h"
#include "cohort/net/socket.h"
#include "cohort/net/waker.h"

namespace cohort::collective::formation {
namespace {

// The limit of an answer; the largest lists the members of a group.
constexpr std::size_t kAnswerBytesMax = 1 << 20;
// A name that does not lead to a process is looked up again after this time.
constexpr auto kLookupTrust = std::chrono::seconds(2);
constexpr auto kLookupPoll = std::chrono::milliseconds(10);
// A process that looks less often was stopped, or its machine was.
constexpr Duration kLookMax = std::chrono::milliseconds(100);

// Bytes of another protocol are damage, unless they come this often.
constexpr int kForeignAnswersMin = 3;

}  // namespace

void Conversation::ask(Bytes message) {
  // The answer to a question that was forgotten would be taken for that to this one.
  if (state_ == State::pending) socket_ = FileDescriptor();
  message_ = std::move(message);
  asked_at_ = Clock::system().now();
  looked_at_ = asked_at_;
  waited_ = {};
  state_ = State::pending;
  is_reused_ = socket_.is_open();
  if (is_reused_) return begin_writing();
  connect();
}

bool Conversation::has_waited(Duration duration, TimePoint now) {
  waited_ += std::min<Duration>(now - std::exchange(looked_at_, now), kLookMax);
  return waited_ > duration;
}

void Conversation::connect() {
  socket_ = FileDescriptor();
  are_all_refused_ = true;
  addresses_.clear();
  is_reused_ = false;
  // The host may have another address when it starts again.
  const bool is_old = !is_address_good_ && asked_at_ - looked_up_at_ > kLookupTrust;
  if (!lookup_ || (is_old && lookup_->found())) {
    lookup_ = net::start_look_up(net::parse_given_address(address_), false);
    looked_up_at_ = asked_at_;
  }
  step_ = Step::looking_up;
}

bool Conversation::look_up() {
  const std::optional<net::FoundAddresses> found = lookup_->found();
  if (!found) return false;
  found_ = found->list;
  if (!found_) {
    end(State::lost, found->problem, /*is_silent=*/true);
    return false;
  }
  next_ = found_.get();
  connect_next(0);
  return state_ == State::pending;
}

void Conversation::connect_next(int error) {
  while (next_ != nullptr) {
    current_ = std::exchange(next_, next_->ai_next);
    error = net::start_connecting(*current_, socket_);
    if (socket_.is_open()) net::tune(socket_.get(), net::Unacknowledged::no_limit);
    if (error == 0) return begin_writing();
    if (error == EINPROGRESS) {
      step_ = Step::connecting;
      return;
    }
    COHORT_CHECK(code_of_errno(error, ErrorCode::unavailable) != ErrorCode::resource_exhausted,
                 ErrorCode::resource_exhausted, "[collective.form] cannot connect to ", address_,
                 ": ", text_of_errno(error));
    note_failure(error);
  }
  is_address_good_ = false;
  end(are_all_refused_ ? State::refused : State::lost, text_of_errno(error),
      /*is_silent=*/!are_all_refused_);
}

void Conversation::note_failure(int error) {
  are_all_refused_ = are_all_refused_ && error == ECONNREFUSED;
  if (error == ECONNREFUSED) addresses_.push_back(net::address_hash(current_->ai_addr));
}

bool Conversation::finish_connecting() {
  pollfd entry{socket_.get(), POLLOUT, 0};
  if (::poll(&entry, 1, 0) <= 0) return false;
  const int error = net::connected_error(socket_.get());
  if (error == 0) {
    begin_writing();
    return true;
  }
  note_failure(error);
  connect_next(error);
  return state_ == State::pending;
}

void Conversation::begin_writing() {
  if (current_ != nullptr) addresses_ = {net::address_hash(current_->ai_addr)};
  is_address_good_ = true;
  num_written_ = 0;
  num_read_ = 0;
  header_.reset();
  step_ = Step::writing;
}

bool Conversation::write() {
  const auto size = ::send(socket_.get(), message_.data() + num_written_,
                           message_.size() - num_written_, MSG_NOSIGNAL);
  if (size < 0) {
    if (errno == EINTR) return true;
    if (errno != EAGAIN) break_off(errno);
    return state_ == State::pending && step_ == Step::looking_up;
  }
  num_written_ += static_cast<std::size_t>(size);
  if (num_written_ == message_.size()) step_ = Step::reading;
  return true;
}

// Returns whether `into` is full. Otherwise more bytes have to come, or the connection broke.
bool Conversation::receive(std::span<std::byte> into) {
  while (num_read_ < into.size()) {
    const auto size = ::recv(socket_.get(), into.data() + num_read_, into.size() - num_read_, 0);
    if (size < 0 && errno == EINTR) continue;
    if (size <= 0) {
      if (size == 0 || errno != EAGAIN) break_off(size == 0 ? ECONNRESET : errno);
      return false;
    }
    num_read_ += static_cast<std::size_t>(size);
  }
  return true;
}

bool Conversation::read() {
  try {
    if (!header_) {
      if (!receive(header_bytes_)) return state_ == State::pending && step_ == Step::looking_up;
      header_ = Header::decode(header_bytes_, kAnswerBytesMax);
      body_.resize(header_->body_bytes);
      num_read_ = 0;
    }
    if (!receive(body_)) return state_ == State::pending && step_ == Step::looking_up;
    header_->check(body_);
    reply_ = decode_reply(body_);
    speaks_protocol_ = true;
    if (reply_.kind == ReplyKind::refused && reply_.code == ErrorCode::data_loss) {
      end(State::lost, "the question was damaged on its way");
      return false;
    }
    step_ = Step::none;
    state_ = State::answered;
  } catch (const Error& error) {
    // It may have been damaged on its way, so the caller asks again.
    if (header_ || speaks_protocol_ || ++num_foreign_ < kForeignAnswersMin) {
      end(State::lost, error.message());
      return false;
    }
    // The other program speaks another protocol, or another version of this one.
    reply_ = {.kind = ReplyKind::refused,
              .code = ErrorCode::failed_precondition,
              .text = error.message()};
    end(State::answered, {});
  }
  return false;
}

void Conversation::break_off(int error) {
  // The process may have closed a connection that was idle, or have started again.
  if (is_reused_ && !header_ && num_read_ == 0) return connect();
  end(State::lost, text_of_errno(error));
}

void Conversation::end(State state, std::string problem, bool is_silent) {
  is_silent_ = is_silent;
  socket_ = FileDescriptor();
  step_ = Step::none;
  state_ = state;
  problem_ = std::move(problem);
}

void Conversation::give_up(std::string problem) {
  end(State::lost, std::move(problem), /*is_silent=*/true);
}

Conversation::State Conversation::advance() {
  bool can_go_on = state_ == State::pending;
  while (can_go_on) {
    switch (step_) {
      case Step::looking_up:
        can_go_on = look_up();
        break;
      case Step::connecting:
        can_go_on = finish_connecting();
        break;
      case Step::writing:
        can_go_on = write();
        break;
      case Step::reading:
        can_go_on = read();
        break;
      case Step::none:
        can_go_on = false;
    }
  }
  return state_;
}

pollfd Conversation::awaited() const {
  if (state_ != State::pending || step_ == Step::looking_up) return {-1, 0, 0};
  const short events = step_ == Step::reading ? POLLIN : POLLOUT;
  return {socket_.get(), events, 0};
}

FileDescriptor Conversation::take_socket() {
  state_ = State::idle;
  return std::exchange(socket_, FileDescriptor());
}

void advance_all(std::span<Conversation* const> conversations, int waker, Deadline deadline) {
  std::vector<pollfd> entries;
  for (Conversation* conversation : conversations) {
    const bool was_pending = conversation->state() == Conversation::State::pending;
    // There is no wait if this has an end at once.
    if (was_pending && conversation->advance() != Conversation::State::pending)
      deadline = Deadline(TimePoint::min());
    const pollfd entry = conversation->awaited();
    // A name's lookup wakes nobody.
    if (conversation->state() == Conversation::State::pending && entry.fd < 0)
      deadline = Deadline(std::min(deadline.time(), Deadline::after(kLookupPoll).time()));
    if (entry.fd >= 0) entries.push_back(entry);
  }
  if (waker >= 0) entries.push_back({waker, POLLIN, 0});
  ::poll(entries.data(), entries.size(), net::poll_milliseconds(deadline));
  for (Conversation* conversation : conversations) conversation->advance();
}

}  // namespace cohort::collective::formation
