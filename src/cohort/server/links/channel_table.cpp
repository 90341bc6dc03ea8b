// SPDX-License-Identifier: Apache-2.0
#include "cohort/server/links/channel_table.h"

#include <algorithm>
#include <atomic>
#include <thread>
#include <unordered_map>
#include <vector>

#include "cohort/core/log.h"
#include "cohort/net/host_proof.h"
#include "cohort/rpc/task_errors.h"

namespace cohort::server {
namespace {

constexpr auto kSendPoll = std::chrono::milliseconds(1);
// How long to wait until peers have read the last frame, since they may have stopped reading.
constexpr auto kFarewellTimeout = std::chrono::milliseconds(200);

// Whether a task of the job greets a start of this task that has ended. It is no stranger, and it
// comes again after a handshake; CurrentSession has said what a restart means.
bool is_of_earlier_start(const Error& error) {
  return error.code() == ErrorCode::failed_precondition &&
         (error.cause() == ErrorCause::handle_lost || error.cause() == ErrorCause::peer_lost);
}

void greet_back(rpc::Channel& channel, std::uint64_t id, const rpc::Hello& hello,
                PayloadChecksums wish) {
  const bool has_sums =
      wish == PayloadChecksums::always || (wish == PayloadChecksums::between_hosts &&
                                           !net::are_on_one_host(channel.host_proof(), hello.host));
  channel.send(rpc::response_to(id, rpc::to_frame(rpc::HelloReply{has_sums})));
  channel.set_payload_checksums(has_sums);
}

void close_when_sent(const std::vector<std::shared_ptr<rpc::Channel>>& channels,
                     Deadline sent_by) noexcept {
  for (const auto& channel : channels) {
    while (channel->queued_bytes() > 0 && !sent_by.has_expired())
      std::this_thread::sleep_for(kSendPoll);
    channel->close();
  }
}

}  // namespace

// Used only from its channel's thread.
struct ChannelTable::Peer {
  std::weak_ptr<rpc::Channel> channel;
  std::shared_ptr<CompletionSender> sender;
  std::shared_ptr<Session> session;  // set by the hello
  bool has_tried = false;            // whether a first message arrived
  bool has_left = false;             // it closes the connection because its work has ended
};

struct ChannelTable::Shared {
  struct Entry {
    std::shared_ptr<rpc::Channel> channel;
    // These are set by the hello.
    std::string task;
    std::uint64_t coordinator_incarnation = 0;
    std::uint64_t answers = 0;  // the number of answers to pings
  };

  const Greet greet;
  const std::shared_ptr<rpc::RefusalLog> refusals;
  const std::shared_ptr<rpc::ErrorRecord> errors;
  std::atomic<std::uint64_t> protocol_errors{0};
  std::atomic<std::uint64_t> losses{0};
  Mutex mutex;
  Condition changed;
  bool is_closed COHORT_GUARDED_BY(mutex) = false;
  bool is_waited_for COHORT_GUARDED_BY(mutex) = true;
  std::optional<TimePoint> unused_since COHORT_GUARDED_BY(mutex);
  std::unordered_map<const rpc::Channel*, Entry> channels COHORT_GUARDED_BY(mutex);

  std::vector<std::shared_ptr<rpc::Channel>> all_that(
      const std::function<bool(const Entry&)>& is_wanted) COHORT_REQUIRES(mutex) {
    std::vector<std::shared_ptr<rpc::Channel>> found;
    for (const auto& [key, entry] : channels) {
      if (is_wanted(entry)) found.push_back(entry.channel);
    }
    return found;
  }

  void receive(Peer& peer, rpc::Frame frame) {
    const std::shared_ptr<rpc::Channel> channel = peer.channel.lock();
    if (!channel) return;
    if (!peer.session && std::exchange(peer.has_tried, true)) {  // a stranger may send one message
      refusals->note(channel->peer(), "expected one greeting, got more before the answer");
      return channel->close();
    }
    if (frame.role == rpc::Frame::Role::response) return note_answer(channel.get());
    const std::uint64_t id = frame.id;
    // An error is a request that did not fit into memory (FrameDecoder), or a farewell.
    const bool is_error = frame.role == rpc::Frame::Role::error;
    if (peer.session && is_error && id == rpc::kFarewellId) {
      const Error why = rpc::error_of(frame);
      peer.has_left = why.code() == ErrorCode::cancelled;
      if (!peer.has_left) log_warn(channel->peer(), " closes its connection: ", why.message());
      return;
    }
    const bool wants_answer = frame.role == rpc::Frame::Role::request || is_error;
    try {
      if (peer.session && is_error) throw rpc::error_of(frame);
      if (peer.session) {
        peer.session->handle(std::move(frame), channel, peer.sender);
        return;
      }
      COHORT_CHECK(static_cast<rpc::MessageType>(frame.type) == rpc::MessageType::hello,
                   ErrorCode::failed_precondition,
                   "[server.receive] expected a hello first, got message type ", frame.type);
      const rpc::Hello hello = rpc::message_of<rpc::Hello>(frame);
      check_open();  // the server that greet() belongs to may be ending
      peer.session = greet(hello);
      channel->admit();
      note_hello(channel.get(), hello, *peer.session);
      peer.session->greeted(hello.task, channel, peer.sender);
      greet_back(*channel, id, hello,
                 rpc::agreed(hello.payload_checksums, peer.session->payload_checksums()));
    } catch (...) {
      const Error error = current_error();
      if (!peer.session && !is_of_earlier_start(error))
        refusals->note(channel->peer(), error.message());
      if (peer.session) errors->note(error);
      const bool must_log = peer.session && (rpc::is_violation(error) || !wants_answer);
      if (must_log) log_warn("a message of ", channel->peer(), " was refused: ", error.what());
      refuse(*channel, error, wants_answer ? std::optional(id) : std::nullopt);
    }
  }

  void check_open() {
    const Lock lock(mutex);
    COHORT_CHECK(!is_closed, ErrorCode::unavailable, "[server.accept] the server ends");
  }

  void note_hello(const rpc::Channel* channel, const rpc::Hello& hello, Session& session) {
    const Lock lock(mutex);
    session.meet(hello.task);
    const auto found = channels.find(channel);
    if (found != channels.end()) {
      found->second.task = hello.task;
      found->second.coordinator_incarnation = hello.coordinator_incarnation;
      unused_since.reset();
    }
    changed.notify_all();
  }

  void note_answer(const rpc::Channel* channel) {
    const Lock lock(mutex);
    const auto found = channels.find(channel);
    if (found == channels.end()) return;
    ++found->second.answers;
    changed.notify_all();
  }

  // Sends the error to the peer if it waits for an answer. Closes the connection if it does not, or
  // if the message is a violation.
  void refuse(rpc::Channel& channel, const Error& error, std::optional<std::uint64_t> request) {
    const bool must_close = rpc::is_violation(error) || !request;
    if (rpc::is_violation(error)) ++protocol_errors;
    try {
      if (request) channel.send(rpc::error_frame(*request, error));
    } catch (const Error& gone) {
      log_debug("an error could not be reported: ", gone.what());
    }
    if (must_close) channel.close();
  }

  // Broken frames of a stranger are only counted as refusals, because strangers may send any bytes.
  void note_broken(const Peer& peer, const Error& reason) {
    const bool is_broken = reason.cause() == ErrorCause::peer_lost &&
                           reason.code() != ErrorCode::unavailable &&
                           reason.code() != ErrorCode::cancelled;
    if (!is_broken) return;
    if (peer.session) {
      log_warn("closing the connection: ", reason.message());
    } else if (const auto channel = peer.channel.lock()) {
      refusals->note(channel->peer(), reason.message());
    }
  }

  void take_leave(Peer& peer, const rpc::Channel* key) {
    std::shared_ptr<rpc::Channel> last;
    {
      const Lock lock(mutex);
      const auto found = channels.find(key);
      if (found != channels.end()) {
        last = std::move(found->second.channel);
        const bool was_greeted = !found->second.task.empty();
        channels.erase(found);
        const auto is_greeted = [](const auto& entry) { return !entry.second.task.empty(); };
        if (was_greeted && std::none_of(channels.begin(), channels.end(), is_greeted))
          unused_since = Clock::system().now();
      }
    }
    changed.notify_all();
    if (!peer.session) return;
    if (peer.has_left) peer.session->take_farewell(peer.sender);
    peer.session->hang_up(peer.sender);
    // The session is released before the channel: the end of a session waits for its runner. If the
    // runner had the last reference to the channel, it would wait for this thread.
    peer.session.reset();
  }
};

ChannelTable::ChannelTable(Greet greet, std::shared_ptr<rpc::RefusalLog> refusals,
                           std::shared_ptr<rpc::ErrorRecord> errors)
    : shared_(new Shared{.greet = std::move(greet),
                         .refusals = std::move(refusals),
                         .errors = std::move(errors)}) {}

rpc::Channel::Handlers ChannelTable::accept(std::shared_ptr<rpc::Channel> channel) {
  const auto peer = std::make_shared<Peer>();
  peer->channel = channel;
  peer->sender = std::make_shared<CompletionSender>(channel);
  const rpc::Channel* key = channel.get();
  {
    const Lock lock(shared_->mutex);
    COHORT_CHECK(!shared_->is_closed, ErrorCode::unavailable, "[server.accept] the server ends");
    shared_->channels[key].channel = std::move(channel);
  }
  rpc::Channel::Handlers handlers;
  handlers.on_frame = [shared = shared_, peer](rpc::Frame frame) {
    shared->receive(*peer, std::move(frame));
  };
  handlers.on_closed = [shared = shared_, peer, key](const Error& reason) {
    log_debug("channel closed: ", reason.what());
    const bool is_lost = reason.cause() == ErrorCause::peer_lost && !peer->has_left;
    if (peer->session && is_lost) ++shared->losses;
    shared->note_broken(*peer, reason);
    shared->take_leave(*peer, key);
  };
  return handlers;
}

std::uint64_t ChannelTable::protocol_errors() const noexcept { return shared_->protocol_errors; }
std::uint64_t ChannelTable::losses() const noexcept { return shared_->losses; }

std::optional<Duration> ChannelTable::unused_for() const {
  const Lock lock(shared_->mutex);
  if (!shared_->unused_since) return std::nullopt;
  return Clock::system().now() - *shared_->unused_since;
}

ChannelTable::Presence ChannelTable::presence(const std::string& task,
                                              std::uint64_t coordinator_incarnation,
                                              Deadline gone_by, Deadline answer_by) {
  const auto is_meant = [&](const Shared::Entry& entry) {
    return entry.task == task && entry.coordinator_incarnation == coordinator_incarnation;
  };
  std::vector<std::shared_ptr<rpc::Channel>> asked;
  std::unordered_map<const rpc::Channel*, std::uint64_t> answers;
  {
    const Lock lock(shared_->mutex);
    asked = shared_->all_that(is_meant);
    for (const auto& [key, entry] : shared_->channels) answers[key] = entry.answers;
  }
  for (const auto& channel : asked) {
    try {
      channel->send(rpc::ping_frame());
    } catch (const Error& error) {
      log_debug("cannot ask ", channel->peer(), ": ", error.what());
    }
  }
  asked.clear();
  const Lock lock(shared_->mutex);
  const auto is_gone = [&]() COHORT_NO_THREAD_SAFETY_ANALYSIS {
    return !shared_->is_waited_for || shared_->all_that(is_meant).empty();
  };
  const auto is_alive = [&]() COHORT_NO_THREAD_SAFETY_ANALYSIS {
    return std::any_of(shared_->channels.begin(), shared_->channels.end(), [&](const auto& entry) {
      return is_meant(entry.second) && entry.second.answers > answers[entry.first];
    });
  };
  shared_->changed.wait(shared_->mutex, gone_by, is_gone);
  shared_->changed.wait(shared_->mutex, answer_by, [&] { return is_gone() || is_alive(); });
  COHORT_CHECK(shared_->is_waited_for, ErrorCode::unavailable, "[server.accept] the server ends");
  if (is_gone()) return Presence::gone;
  return is_alive() ? Presence::alive : Presence::silent;
}

void ChannelTable::await_coordinator(const Session& session, Deadline deadline) {
  const Lock lock(shared_->mutex);
  shared_->changed.wait(shared_->mutex, deadline, [&]() COHORT_NO_THREAD_SAFETY_ANALYSIS {
    return session.has_met_coordinator() || session.is_replaced() || !shared_->is_waited_for;
  });
}

void ChannelTable::end_waits() noexcept {
  const Lock lock(shared_->mutex);
  shared_->is_waited_for = false;
  shared_->changed.notify_all();
}

void ChannelTable::close_of(std::uint64_t coordinator_incarnation, const Error& why) noexcept {
  std::vector<std::shared_ptr<rpc::Channel>> old;
  {
    const Lock lock(shared_->mutex);
    old = shared_->all_that([&](const Shared::Entry& entry) {
      return entry.coordinator_incarnation == coordinator_incarnation;
    });
  }
  shared_->changed.notify_all();  // for await_coordinator()
  for (const auto& channel : old) {
    try {
      channel->send(rpc::farewell_frame(why));
    } catch (...) {  // the peer is gone
      log_debug("cannot send the farewell to ", channel->peer(), ": ", current_error().what());
    }
  }
  close_when_sent(old, Deadline::after(kFarewellTimeout));
}

bool ChannelTable::close_all(Deadline sent_by, Deadline ended_by) noexcept {
  std::vector<std::shared_ptr<rpc::Channel>> open;
  {
    const Lock lock(shared_->mutex);
    shared_->is_closed = true;
    open = shared_->all_that([](const Shared::Entry&) { return true; });
  }
  close_when_sent(open, sent_by);
  const Lock lock(shared_->mutex);
  const bool is_done = shared_->changed.wait(
      shared_->mutex, ended_by,
      [this]() COHORT_REQUIRES(shared_->mutex) { return shared_->channels.empty(); });
  if (!is_done) log_warn("a message is still being handled: its channel is left behind");
  return is_done;
}  // channels that are left behind stay alive, because their handlers hold the entries

}  // namespace cohort::server
