// SPDX-License-Identifier: Apache-2.0
// Accepts the connections of a task's ports, reads their first bytes, and passes HTTP/2 to gRPC,
// and frames to the stream backend once the first one has arrived: until then a connection takes no
// thread. Until its peer has completed the handshake or hello, a connection is a stranger's: the
// number, the time and the bytes of strangers are limited.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "cohort/net/waker.h"
#include "cohort/rpc/control.h"
#include "cohort/rpc/refusal_log.h"

namespace cohort::rpc::internal {

// An accepted connection, for the code that serves it. Thread-safe.
class Visitor {
 public:
  Visitor(std::string address, std::function<void()> on_admit)
      : address_(std::move(address)), on_admit_(std::move(on_admit)) {}
  // "127.0.0.1:51344"
  const std::string& address() const { return address_; }
  bool is_admitted() const { return is_admitted_; }
  // A call came over it, so that its answer or refusal already reports what the peer wanted.
  bool has_called() const { return has_called_; }
  void note_call() { has_called_ = true; }
  // The peer has completed the handshake, so the limits for strangers end.
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
    // Empty: refuses HTTP/2. Called on the acceptor's thread.
    Take take_http2;
    Take take_frames;
    Take take_http1 = {};  // a GET of HTTP/1.1; empty: refuses it
  };
  struct Options {
    std::vector<Port> ports;
    StrangerLimits limits;
    std::shared_ptr<RefusalLog> refusals;
    std::function<bool()> should_stop{};  // see ServeOptions
  };

  // Listens at once on every address of each port's name. Throws resource_exhausted if a port is
  // taken, invalid_argument if an address is not this machine's, unavailable if no name server
  // knows the address of the name now.
  explicit Acceptor(Options options);
  // Closes the ports; connections that were handed over stay open.
  ~Acceptor();
  Acceptor(const Acceptor&) = delete;
  Acceptor& operator=(const Acceptor&) = delete;

  // The address of that port, with the chosen number.
  const std::string& address(std::size_t port) const { return options_.ports.at(port).address; }
  std::size_t strangers() const;
  // Refuses new connections; accepted ones stay open.
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
  // Logs the refusal, if there is one. Returns whether there is one.
  bool note(const std::optional<Refused>& refused);
  void accept_from(std::size_t listening);
  void wait_for_room(std::size_t port, int error);
  void look_at(std::uint64_t id, bool sends_no_more);
  void hand_over(std::uint64_t id, const Take& take);

  struct Listening {
    FileDescriptor socket;
    std::size_t port;
  };

  Options options_;
  // Because of too few descriptors or too little memory.
  RefusalLog failures_{Clock::system(), "cannot accept"};
  net::Waker waker_;
  std::atomic<bool> is_stopped_{false};
  std::atomic<bool> is_closed_{false};
  std::vector<Listening> listening_;
  std::shared_ptr<Strangers> strangers_;  // visitors refer to it weakly
  std::thread thread_;
};

}  // namespace cohort::rpc::internal
