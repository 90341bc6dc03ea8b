// SPDX-License-Identifier: Apache-2.0
#include "cohort/cli/check/exchange.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <memory>
#include <set>
#include <thread>
#include <utility>

#include "cohort/core/file_descriptor.h"
#include "cohort/core/mutex.h"
#include "cohort/core/start_thread.h"
#include "cohort/core/system_error.h"
#include "cohort/net/host_port.h"
#include "cohort/net/name_lookup.h"
#include "cohort/net/socket.h"
#include "cohort/net/waker.h"

namespace cohort::cli {
namespace {

using PeerState = PeerReport::State;

// Before the facts: what a task of another kind does not send, and their length.
constexpr std::string_view kGreeting = "cohort check 1\n";
constexpr std::size_t kLengthBytes = 4;
constexpr std::size_t kFactsBytesMax = std::size_t{4} << 20;
// For one question, of which the other task's program may be stopped.
constexpr auto kAnswerTime = std::chrono::seconds(2);
constexpr auto kDialPause = std::chrono::milliseconds(20);
// A stranger may be a process that is just ending.
constexpr auto kStrangerTime = std::chrono::seconds(1);

std::string framed(const TaskFacts& facts) {
  const std::string text = text_of_facts(facts);
  std::string frame(kGreeting);
  for (std::size_t i = 0; i < kLengthBytes; ++i)
    frame.push_back(static_cast<char>((text.size() >> (8 * i)) & 0xff));
  return frame + text;
}

// A connection whose bytes have a deadline. Used only from one thread.
class Talk {
 public:
  Talk(int socket, Deadline deadline) : socket_(socket), deadline_(deadline) {}

  // Returns false at the deadline, and if the connection breaks.
  bool send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t sent = ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent > 0) {
        bytes.remove_prefix(static_cast<std::size_t>(sent));
      } else if (!waits_for(POLLOUT)) {
        return false;
      }
    }
    return true;
  }
  // The result is shorter after the deadline and after the end of the connection.
  std::string receive(std::size_t size) {
    std::string bytes(size, '\0');
    std::size_t at = 0;
    while (at < size) {
      const ssize_t got = ::recv(socket_, bytes.data() + at, size - at, 0);
      if (got > 0) {
        at += static_cast<std::size_t>(got);
      } else if (got == 0 || !waits_for(POLLIN)) {
        break;
      }
    }
    bytes.resize(at);
    return bytes;
  }
  // nullopt, with a reason, for anything but facts.
  std::optional<TaskFacts> receive_facts(std::string& reason) {
    const std::string head = receive(kGreeting.size() + kLengthBytes);
    if (!head.starts_with(kGreeting)) {
      reason = head.empty() ? "it closes the connection, or does not answer"
                            : "it answers as another program does";
      return std::nullopt;
    }
    std::size_t size = 0;
    for (std::size_t i = 0; i < kLengthBytes && kGreeting.size() + i < head.size(); ++i)
      size |= static_cast<std::size_t>(static_cast<unsigned char>(head[kGreeting.size() + i]))
              << (8 * i);
    std::optional<TaskFacts> facts;
    if (size <= kFactsBytesMax) facts = facts_of_text(receive(size));
    if (!facts) reason = "its answer cannot be read";
    return facts;
  }

 private:
  bool waits_for(short events) const {
    if (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR) return false;
    pollfd socket{socket_, events, 0};
    return ::poll(&socket, 1, net::poll_milliseconds(deadline_)) > 0;
  }

  const int socket_;
  const Deadline deadline_;
};

Deadline earlier(Deadline one, Deadline other) { return one.time() < other.time() ? one : other; }

// Which tasks have reached this one. Thread-safe.
class Callers {
 public:
  void add(const std::string& task) {
    const Lock lock(mutex_);
    tasks_.insert(task);
    changed_.notify_all();
  }
  bool has(const std::string& task) {
    const Lock lock(mutex_);
    return tasks_.contains(task);
  }
  // Returns when all have, or at the deadline.
  void wait_for(const std::set<std::string>& all, Deadline deadline) {
    const Lock lock(mutex_);
    changed_.wait(mutex_, deadline, [&]() COHORT_REQUIRES(mutex_) {
      return std::includes(tasks_.begin(), tasks_.end(), all.begin(), all.end());
    });
  }

 private:
  Mutex mutex_;
  Condition changed_;
  std::set<std::string> tasks_ COHORT_GUARDED_BY(mutex_);
};

// Answers whoever connects, on a thread of its own, until it is destroyed. Used only from one
// thread.
class Answering {
 public:
  Answering(std::vector<FileDescriptor> listening, TaskFacts own, Callers& callers)
      : listening_(std::move(listening)), own_(std::move(own)), callers_(callers) {
    thread_ = start_thread_without_signals("to answer other tasks", [this] { run(); });
  }
  ~Answering() {
    is_over_ = true;
    waker_.wake();
    thread_.join();
  }
  Answering(const Answering&) = delete;
  Answering& operator=(const Answering&) = delete;

 private:
  void run() {
    JoinedThreads answers;
    std::vector<pollfd> polled = {{waker_.fd(), POLLIN, 0}};
    for (const FileDescriptor& each : listening_) polled.push_back({each.get(), POLLIN, 0});
    while (!is_over_) {
      ::poll(polled.data(), polled.size(), -1);
      for (const pollfd& each : polled) {
        if (each.fd == waker_.fd() || (each.revents & POLLIN) == 0) continue;
        const int accepted = ::accept4(each.fd, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (accepted < 0) continue;
        std::thread answer = start_answer(accepted);
        if (answer.joinable()) answers.add(std::move(answer));
      }
    }
  }
  std::thread start_answer(int accepted) {
    const auto socket = std::make_shared<FileDescriptor>(accepted);
    try {
      return start_thread_without_signals("to answer a task",
                                          [this, socket] { answer(socket->get()); });
    } catch (const Error&) {  // without a thread the caller asks again
      return {};
    }
  }
  void answer(int socket) {
    Talk talk(socket, Deadline::after(kAnswerTime));
    std::string reason;
    const std::optional<TaskFacts> theirs = talk.receive_facts(reason);
    if (!theirs) return;  // a stranger
    TaskFacts now = own_;
    now.clock_seconds = clock_seconds_now();
    if (talk.send(framed(now))) callers_.add(theirs->task);
  }

  const std::vector<FileDescriptor> listening_;
  const TaskFacts own_;
  Callers& callers_;
  net::Waker waker_;
  std::atomic<bool> is_over_ = false;
  std::thread thread_;
};

// Connects to the first of the addresses that can be reached; 0, or why none was.
int connect_to_one(const addrinfo& addresses, Deadline deadline, FileDescriptor& socket) {
  int problem = ECONNREFUSED;
  for (const addrinfo* one = &addresses; one != nullptr; one = one->ai_next) {
    problem = net::start_connecting(*one, socket);
    if (problem == 0) return 0;
    if (problem != EINPROGRESS) continue;
    pollfd connecting{socket.get(), POLLOUT, 0};
    const bool is_ready = ::poll(&connecting, 1, net::poll_milliseconds(deadline)) > 0;
    problem = is_ready ? net::connected_error(socket.get()) : ETIMEDOUT;
    if (problem == 0) return 0;
  }
  return problem;
}

// Asks once. Returns whether another attempt may have another result.
bool dial_once(const std::string& frame, const addrinfo& addresses, Deadline deadline,
               PeerReport& peer) {
  FileDescriptor socket;
  const int problem = connect_to_one(addresses, deadline, socket);
  if (problem != 0) {
    peer.state = problem == ECONNREFUSED ? PeerState::refused : PeerState::no_answer;
    peer.reason = problem == ECONNREFUSED ? "nobody listens there" : text_of_errno(problem);
    return true;
  }
  const double asked = clock_seconds_now();
  Talk talk(socket.get(), earlier(deadline, Deadline::after(kAnswerTime)));
  peer.facts = talk.send(frame) ? talk.receive_facts(peer.reason) : std::nullopt;
  const double answered = clock_seconds_now();
  peer.state = peer.facts ? PeerState::answers : PeerState::stranger;
  if (!peer.facts) return true;
  peer.clock_difference = peer.facts->clock_seconds - (asked + answered) / 2;
  peer.clock_doubt = (answered - asked) / 2;
  return false;
}

void dial(const TaskFacts& own, Deadline deadline, PeerReport& peer) {
  const std::string frame = framed(own);
  const net::HostPort where = net::parse_given_address(peer.address);
  while (!deadline.has_expired()) {
    const std::optional<net::FoundAddresses> found = net::look_up(where, false, deadline);
    if (found && found->list != nullptr) {
      if (!dial_once(frame, *found->list, deadline, peer)) return;
      if (peer.state == PeerState::stranger)
        deadline = earlier(deadline, Deadline::after(kStrangerTime));
    } else {
      const bool is_temporary = !found || found->is_temporary;
      peer.state = is_temporary ? PeerState::no_name_server : PeerState::name_not_found;
      peer.reason = found ? found->problem : "no name server answered in time";
      if (!is_temporary) return;
    }
    std::this_thread::sleep_for(std::min<Duration>(kDialPause, deadline.remaining()));
  }
}

void dial_without_throwing(const TaskFacts& own, Deadline deadline, PeerReport& peer) {
  try {
    dial(own, deadline, peer);
  } catch (const Error& error) {  // too few descriptors or threads
    peer.state = PeerState::no_answer;
    peer.reason = error.message();
  }
}

}  // namespace

ExchangedFacts exchange_facts(const TaskFacts& own, const std::string& address,
                              std::vector<PeerReport> peers, Deadline deadline) {
  ExchangedFacts exchanged{.peers = std::move(peers)};
  Callers callers;
  std::optional<Answering> answering;
  if (!address.empty()) {
    try {
      std::string own_address = address;
      answering.emplace(net::listen_on_all(own_address, [&] { return deadline.has_expired(); }),
                        own, callers);
      exchanged.is_listening = true;
    } catch (const Error& error) {
      exchanged.listening = error;
    }
  }
  std::set<std::string> awaited;
  {
    JoinedThreads dials;
    for (PeerReport& peer : exchanged.peers) {
      awaited.insert(peer.task);
      dials.add(start_thread_without_signals("to reach a task",
                                             [&] { dial_without_throwing(own, deadline, peer); }));
    }
  }
  if (exchanged.is_listening) callers.wait_for(awaited, deadline);
  for (PeerReport& peer : exchanged.peers) peer.has_dialed = callers.has(peer.task);
  return exchanged;
}

}  // namespace cohort::cli
