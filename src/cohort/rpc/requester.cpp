// SPDX-License-Identifier: Apache-2.0
#include "cohort/rpc/requester.h"

#include <algorithm>
#include <chrono>
#include <iomanip>
#include <sstream>
#include <thread>
#include <unordered_map>
#include <utility>

#include "cohort/core/log.h"
#include "cohort/rpc/answers.h"
#include "cohort/rpc/messages.h"

namespace cohort::rpc {
namespace {

// How long a guest waits for the answers of one channel while others may have come over the next
// ones.
constexpr auto kPatienceOfGuest = std::chrono::milliseconds(2);

// "1800.03", "60", "0.5"
std::string seconds_since(TimePoint start) {
  const double seconds = std::chrono::duration<double>(Clock::system().now() - start).count();
  std::ostringstream text;
  text << std::setprecision(seconds < 1000 ? 3 : 6) << seconds;
  return text.str();
}

}  // namespace

// Shared with the channel's handlers. Thread-safe.
struct Requester::State {
  struct Waiting {
    OnAnswer on_answer;
    bool has_guest = false;  // see request()
  };

  // Used only from the channel's thread; they may hold the requester, so finish() releases them.
  std::function<void(Frame)> on_one_way;
  std::function<void(const Error&)> on_closed;
  std::string task;

  Mutex mutex;
  Condition changed;
  std::shared_ptr<Channel> channel COHORT_GUARDED_BY(mutex);
  std::unordered_map<std::uint64_t, Waiting> waiting COHORT_GUARDED_BY(mutex);
  std::uint64_t last_id COHORT_GUARDED_BY(mutex) = 0;
  std::optional<Error> closed COHORT_GUARDED_BY(mutex);    // no request is taken after this
  std::optional<Error> given_up COHORT_GUARDED_BY(mutex);  // the error of waiting requests
  std::optional<Error> farewell COHORT_GUARDED_BY(mutex);  // why the peer ends the channel
  bool is_finished COHORT_GUARDED_BY(mutex) = false;       // on_closed ran
  std::thread::id thread COHORT_GUARDED_BY(mutex);         // the channel's, until finished

  void note_thread() {
    Lock lock(mutex);
    thread = std::this_thread::get_id();
  }

  bool is_own_thread() {
    Lock lock(mutex);
    return thread == std::this_thread::get_id();
  }

  // Also if it is closed; null before connect() has returned.
  std::shared_ptr<Channel> known_channel() {
    Lock lock(mutex);
    return channel;
  }

  OnAnswer take(std::uint64_t id) {
    Lock lock(mutex);
    const auto it = waiting.find(id);
    if (it == waiting.end()) return {};
    OnAnswer on_answer = std::move(it->second.on_answer);
    waiting.erase(it);
    return on_answer;
  }

  // For a guest: gives a response to the thread that waits for it. Errors are left to the channel's
  // thread, since a broken one closes the channel.
  bool take_response(Frame& frame) {
    if (frame.role != Frame::Role::response) return false;
    OnAnswer on_answer;
    {
      Lock lock(mutex);
      const auto it = waiting.find(frame.id);
      if (it == waiting.end() || !it->second.has_guest) return false;
      on_answer = std::move(it->second.on_answer);
      waiting.erase(it);
    }
    on_answer(std::move(frame));
    return true;
  }

  bool has_more_requests_than(std::size_t own) {
    Lock lock(mutex);
    return waiting.size() > own;
  }

  // Receives on this thread until is_done() or the deadline, if nobody but this thread waits for
  // answers, of which there are `own`. The channel's thread is best at receiving those of several
  // threads, and those for which no thread waits.
  void receive_until(const std::function<bool()>& is_done, std::size_t own, Deadline deadline) {
    const std::shared_ptr<Channel> from = known_channel();
    if (from == nullptr) return;
    if (has_more_requests_than(own)) return from->resume();
    const auto take_frame = [this](Frame& frame) { return take_response(frame); };
    if (!from->receive_as_guest({.take = take_frame, .is_done = is_done}, deadline)) return;
    if (has_more_requests_than(0)) from->resume();  // of others that came meanwhile
  }

  // Returns the request's id. If the channel is closed, returns 0 and leaves `on_answer` unchanged.
  std::uint64_t add(OnAnswer& on_answer, bool has_guest) {
    Lock lock(mutex);
    if (closed) return 0;
    const std::uint64_t id = ++last_id;
    waiting.emplace(id, Waiting{std::move(on_answer), has_guest});
    return id;
  }

  // `has_guest`: a thread that calls receive_until() waits for the answer.
  std::uint64_t request(Frame frame, OnAnswer on_answer, bool has_guest = false) {
    const std::uint64_t id = add(on_answer, has_guest);
    frame.role = Frame::Role::request;
    frame.id = id;
    std::optional<Error> refused;
    try {
      const std::shared_ptr<Channel> to = open_channel();
      to->send(std::move(frame));
      if (!has_guest) to->resume();
      return id;
    } catch (...) {
      refused = current_error();
    }
    // If the request was added, finish() may have answered it already.
    if (id != 0) on_answer = take(id);
    if (on_answer) on_answer(std::move(*refused));
    return id;
  }

  void receive(Frame frame) {
    note_thread();
    if (frame.role == Frame::Role::request) return answer_ping(frame);
    if (frame.role == Frame::Role::one_way) {
      if (on_one_way) on_one_way(std::move(frame));
      return;
    }
    // Decoded first: a broken error frame closes the channel, and then finish() answers the
    // request.
    std::optional<Error> error;
    if (frame.role == Frame::Role::error) error = error_of(frame);
    if (error && frame.id == kFarewellId) return take_farewell(*error);
    const OnAnswer on_answer = take(frame.id);
    if (!on_answer) return;  // no caller waits for it any more
    if (!error) return on_answer(std::move(frame));
    if (error->origin().empty()) std::move(*error).at(task);
    on_answer(std::move(*error));
  }

  // Closes the channel. Waiting requests and on_closed get the peer's reason.
  void take_farewell(const Error& received) {
    Error why = received.origin().empty() ? Error(received).at(task) : received;
    std::shared_ptr<Channel> ended;
    {
      Lock lock(mutex);
      if (closed) return;
      closed = given_up = farewell = std::move(why);
      ended = channel;
    }
    if (ended) ended->close();
  }

  // A ping is the only request that a peer may send.
  void answer_ping(const Frame& request) {
    const std::shared_ptr<Channel> to = known_channel();
    const bool is_ping = request.type == static_cast<std::uint16_t>(MessageType::ping);
    if (to == nullptr || !is_ping) return;
    to->send({.role = Frame::Role::response, .type = request.type, .id = request.id});
  }

  void finish(const Error& reason) {
    note_thread();
    const auto one_way = std::exchange(on_one_way, {});
    const auto last = std::exchange(on_closed, {});
    std::unordered_map<std::uint64_t, Waiting> left;
    std::optional<Error> told;
    std::optional<Error> heard;
    {
      Lock lock(mutex);
      if (!closed) closed = reason;
      told = given_up ? given_up : reason;
      heard = farewell ? farewell : reason;
      left.swap(waiting);
    }
    const auto guarded = [this](const auto& handler) {
      try {
        handler();
      } catch (...) {
        log_error("a handler of the end of ", task, " failed: ", current_error().what());
      }
    };
    for (auto& [id, each] : left) guarded([&answer = each.on_answer, &told] { answer(*told); });
    if (last) guarded([&] { last(*heard); });
    Lock lock(mutex);
    thread = {};
    is_finished = true;
    changed.notify_all();
  }

  // Throws the reason if closed.
  std::shared_ptr<Channel> open_channel() {
    Lock lock(mutex);
    if (closed) throw Error(*closed);
    return channel;
  }
};

std::shared_ptr<Requester> Requester::connect(const Backend& backend, const ConnectOptions& options,
                                              std::function<void(Frame)> on_one_way,
                                              std::function<void(const Error&)> on_closed) {
  auto state = std::make_shared<State>();
  state->on_one_way = std::move(on_one_way);
  state->on_closed = std::move(on_closed);
  state->task = options.peer;
  auto channel = backend.connect(
      options, {.on_frame = [state](Frame frame) { state->receive(std::move(frame)); },
                .on_closed = [state](const Error& reason) { state->finish(reason); }});
  std::string peer = channel->peer();
  {
    Lock lock(state->mutex);
    state->channel = std::move(channel);
  }
  return std::shared_ptr<Requester>(new Requester(std::move(state), std::move(peer)));
}

Requester::Requester(std::shared_ptr<State> state, std::string peer)
    : state_(std::move(state)), peer_(std::move(peer)) {}

Requester::~Requester() {
  close();
  std::shared_ptr<Channel> channel;  // released without the lock, as that joins its thread
  Lock lock(state_->mutex);
  if (state_->thread != std::this_thread::get_id()) {
    state_->changed.wait(state_->mutex, Deadline(),
                         [this]() COHORT_REQUIRES(state_->mutex) { return state_->is_finished; });
  }
  channel = std::move(state_->channel);
}

void Requester::request(Frame frame, OnAnswer on_answer) {
  state_->request(std::move(frame), std::move(on_answer));
}

std::vector<std::optional<Answer>> Requester::ask_all(std::vector<Request> requests,
                                                      Deadline deadline) {
  for (const Request& request : requests) {
    COHORT_CHECK(!request.to->state_->is_own_thread(), ErrorCode::failed_precondition,
                 "[rpc.call] expected another thread than that of the channel to ",
                 request.to->peer_, ", which would wait for itself; use request()");
  }
  // The threads of several channels receive at the same time, which is worth a wake-up of each only
  // for large answers.
  const auto is_first = [&](const Request& request) { return request.to == requests.front().to; };
  const bool has_guest = std::ranges::all_of(requests, is_first) ||
                         std::ranges::all_of(requests, &Request::has_small_answer);
  const auto answers = std::make_shared<internal::Answers>(requests.size());
  std::vector<std::uint64_t> ids;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    const auto on_answer = [answers, i](Answer answer) { answers->put(i, std::move(answer)); };
    ids.push_back(
        requests[i].to->state_->request(std::move(requests[i].frame), on_answer, has_guest));
  }
  // A channel whose peer is slow must not keep this thread from the answers of the others.
  for (std::size_t i = 0; has_guest && i < requests.size(); ++i) {
    const auto is_own = [&](std::size_t k) { return requests[k].to == requests[i].to; };
    const auto is_other = [&](std::size_t k) { return !is_own(k); };
    const auto is_done = [&] { return answers->are_here(is_own); };
    if (is_done()) continue;
    Deadline patience = deadline;
    if (!answers->are_here(is_other)) {
      const Deadline soon = Deadline::after(kPatienceOfGuest);
      patience = Deadline(std::min(deadline.time(), soon.time()));
    }
    const auto own = std::ranges::count(requests, requests[i].to, &Request::to);
    requests[i].to->state_->receive_until(is_done, static_cast<std::size_t>(own), patience);
    if (is_done()) continue;
    for (const Request& request : requests)
      if (const auto channel = request.to->state_->known_channel()) channel->resume();
    break;
  }
  std::vector<std::optional<Answer>> all = answers->wait(deadline);
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (!all[i]) requests[i].to->state_->take(ids[i]);  // no caller waits for it any more
  }
  return all;
}

Frame Requester::call(Frame frame, Deadline deadline, std::string_view operation) {
  const TimePoint start = Clock::system().now();
  try {
    std::vector<Request> requests;
    requests.push_back({this, std::move(frame)});
    std::optional<Answer> answer = std::move(ask_all(std::move(requests), deadline)[0]);
    if (!answer) {
      throw Error(ErrorCode::deadline_exceeded,
                  "[rpc.call] expected an answer from " + peer_ + " within " +
                      seconds_since(start) +
                      " s, got none; see whether it hangs, or allow more time "
                      "(ClusterOptions::data_timeout, of control calls ::timeout)")
          .at(state_->task);
    }
    if (const Error* error = std::get_if<Error>(&*answer)) throw Error(*error);
    return std::get<Frame>(std::move(*answer));
  } catch (const Error& error) {
    throw Error(error).during(std::string(operation));
  }
}

void Requester::send_one_way(Frame frame) {
  frame.role = Frame::Role::one_way;
  const std::shared_ptr<Channel> to = state_->open_channel();
  to->send(std::move(frame));
  to->resume();  // the answers to it, if any, are one-way frames
}

void Requester::close() noexcept {
  std::shared_ptr<Channel> channel;
  {
    Lock lock(state_->mutex);
    if (!state_->closed) {
      state_->closed =
          Error(ErrorCode::cancelled, "[rpc.request] the channel to " + peer_ + " was closed here");
    }
    channel = state_->channel;
  }
  if (channel != nullptr) channel->close();
}

void Requester::leave() noexcept {
  try {
    state_->open_channel()->send(
        farewell_frame(Error(ErrorCode::cancelled, "[rpc.request] the sender has ended its work")));
  } catch (...) {
    log_debug("cannot send the farewell to ", peer_, ": ", current_error().what());
  }
  close();
}

void Requester::give_up(const Error& why) noexcept {
  {
    Lock lock(state_->mutex);
    if (!state_->closed) state_->closed = state_->given_up = why;
  }
  close();
}

bool Requester::is_open() const {
  Lock lock(state_->mutex);
  return !state_->closed;
}

const std::string& Requester::peer() const { return peer_; }

Channel::Progress Requester::progress() const { return state_->known_channel()->progress(); }

net::HostProof Requester::host_proof() const { return state_->open_channel()->host_proof(); }

void Requester::set_payload_checksums(bool are_on) {
  state_->open_channel()->set_payload_checksums(are_on);
}

}  // namespace cohort::rpc
