// SPDX-License-Identifier: Apache-2.0
// Requests and responses over one channel: ids, deadlines, and an answer for every request.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "cohort/core/mutex.h"
#include "cohort/rpc/channel.h"

namespace cohort::rpc {

// The response, or why there is none: the peer's own error, peer_lost, or deadline_exceeded.
using Answer = std::variant<Frame, Error>;

// The client end. Thread-safe.
class COHORT_API Requester {
 public:
  using OnAnswer = std::function<void(Answer answer)>;

  // `on_one_way` receives frames that are not answers. `on_closed` is the channel's, and runs after
  // every request was answered.
  static std::shared_ptr<Requester> connect(const Backend& backend, const ConnectOptions& options,
                                            std::function<void(Frame)> on_one_way = {},
                                            std::function<void(const Error&)> on_closed = {});
  // Closes, and waits until no handler runs (except when called from one).
  ~Requester();

  // Sets role and id, sends the frame and returns. `on_answer` runs exactly once, on the channel's
  // thread (or on the caller's if the channel is already closed).
  void request(Frame frame, OnAnswer on_answer);
  // Like request(), but waits for the answer, and throws if it is an error. After the deadline
  // throws deadline_exceeded, which names the peer, `operation` and the time waited.
  Frame call(Frame frame, Deadline deadline, std::string_view operation);
  void send_one_way(Frame frame);
  void close() noexcept;
  // Like close(), but first tells the peer that this is a normal end, so that the peer does not
  // count a lost connection. If the farewell cannot be sent at once, the peer counts one.
  void leave() noexcept;
  // Like close(), but `why` is the error of waiting and later requests.
  void give_up(const Error& why) noexcept;
  bool is_open() const;
  const std::string& peer() const;
  Channel::Progress progress() const;  // the channel's
  // See Channel.
  net::HostProof host_proof() const;
  void set_payload_checksums(bool are_on);

  struct Request {
    Requester* to;
    Frame frame;
    bool has_small_answer = false;  // about a page: it takes less time than to wake a thread
  };
  // Sends all requests, then waits for the answers until `deadline`. Returns an answer for each
  // request, or nullopt if it was late. Throws failed_precondition, without sending anything, on
  // the thread of one of the channels, which would wait for itself.
  static std::vector<std::optional<Answer>> ask_all(std::vector<Request> requests,
                                                    Deadline deadline);

 private:
  struct State;
  Requester(std::shared_ptr<State> state, std::string peer);
  std::shared_ptr<State> state_;  // shared with the channel's handlers
  std::string peer_;
};

}  // namespace cohort::rpc
