// SPDX-License-Identifier: Apache-2.0
// Takes the connections of a task's ports, reads their first bytes, and hands each to who serves
// it: HTTP/2 to gRPC, frames to the stream backend. Until its peer has shaken hands, or greeted, a
// connection is a stranger's: there are so many of them, for so long, with so many bytes.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "cohort/rpc/control.h"
#include "cohort/rpc/internal/socket.h"
#include "cohort/rpc/refusal_log.h"

namespace cohort::rpc::internal {

// An accepted connection, as who serves it knows it. Thread-safe.
class Visitor {
 public:
  Visitor(std::string address, std::function<void()> on_admit)
      : address_(std::move(address)), on_admit_(std::move(on_admit)) {}
  // "127.0.0.1:51344"
  const std::string& address() const { return address_; }
  bool is_admitted() const { return is_admitted_; }
  // A call has come over it, whose answer or refusal says what there is to say.
  bool has_called() const { return has_called_; }
  void note_call() { has_called_ = true; }
  // Its peer has shaken hands: no stranger any more.
  void admit() {
    if (!is_admitted_.exchange(true)) on_admit_();
  }

 private:
  const std::string address_;
  const std::function<void()> on_admit_;
  std::atomic<bool> is_admitted_{false};
  std::atomic<bool> has_called_{false};
};

// Thread-safe.
class Acceptor {
 public:
  using Take = std::function<void(FileDescriptor socket, std::shared_ptr<Visitor> visitor)>;
  struct Port {
    std::string address;  // "host:port"; port 0: the system chooses
    // Empty: refused there. Called on the acceptor's thread.
    Take take_http2;
    Take take_frames;
  };
  struct Options {
    std::vector<Port> ports;
    StrangerLimits limits;
    std::shared_ptr<RefusalLog> refusals;
  };

  // Listens on every address of each port's name, at once. already_exists when a port is taken,
  // invalid_argument when an address is not this machine's.
  explicit Acceptor(Options options);
  // Closes the ports; what was handed over lives on.
  ~Acceptor();
  Acceptor(const Acceptor&) = delete;
  Acceptor& operator=(const Acceptor&) = delete;

  // Of that port, with the number that was chosen.
  const std::string& address(std::size_t port) const { return options_.ports.at(port).address; }
  std::size_t strangers() const;
  // Connections are refused from here on; those that have come live on.
  void close_ports() noexcept;

 private:
  class Strangers;
  struct Refused {
    std::string who;
    std::string why;
  };
  void run() noexcept;
  void handle(std::uint64_t id, std::uint32_t events);
  void end_expired();
  // Writes down a refusal, if it is one, and says whether it is.
  bool note(const std::optional<Refused>& refused);
  void accept_from(std::size_t listening);
  void wait_for_room(std::size_t port, int error);
  void look_at(std::uint64_t id);
  void hand_over(std::uint64_t id, const Take& take);

  struct Listening {
    FileDescriptor socket;
    std::size_t port;
  };

  Options options_;
  RefusalLog failures_{Clock::system(), "cannot accept"};  // for want of descriptors, or memory
  Waker waker_;
  std::atomic<bool> is_stopped_{false};
  std::atomic<bool> is_closed_{false};
  std::vector<Listening> listening_;
  std::shared_ptr<Strangers> strangers_;  // with their visitors
  std::thread thread_;
};

}  // namespace cohort::rpc::internal
