// SPDX-License-Identifier: Apache-2.0
// Channels over TCP without a task's server: no handshake, no hello, no limits for strangers.
#pragma once

#include <poll.h>
#include <sys/socket.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "cohort/core/log.h"
#include "cohort/net/socket.h"
#include "cohort/rpc/backends/stream/stream_backend.h"

namespace cohort::testing {

// Passes on what it accepts. Thread-safe.
class SocketListener final : public rpc::Listener {
 public:
  SocketListener(std::string address, rpc::internal::Acceptor::Take take)
      : address_(std::move(address)), take_(std::move(take)), socket_(net::listen_on(address_)) {
    thread_ = std::thread([this] { run(); });
  }
  ~SocketListener() override {
    is_stopped_ = true;
    ::shutdown(socket_.get(), SHUT_RDWR);
    thread_.join();
  }

  const std::string& address() const override { return address_; }

 private:
  void run() {
    while (!is_stopped_) {
      pollfd entry{socket_.get(), POLLIN, 0};
      ::poll(&entry, 1, -1);
      FileDescriptor socket(
          ::accept4(socket_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
      if (!socket.is_open()) continue;
      auto visitor =
          std::make_shared<rpc::internal::Visitor>(net::remote_address(socket.get()), [] {});
      visitor->admit();
      try {
        take_(std::move(socket), std::move(visitor));
      } catch (...) {
        log_error("accepting on ", address_, " failed: ", current_error().what());
      }
    }
  }

  std::string address_;
  rpc::internal::Acceptor::Take take_;
  FileDescriptor socket_;
  std::atomic<bool> is_stopped_{false};
  std::thread thread_;
};

inline std::unique_ptr<rpc::Listener> listen_on_stream(
    rpc::AcceptHandler accept, std::string address = "127.0.0.1:0",
    std::size_t frame_bytes_max = rpc::kFrameBytesMax) {
  return std::make_unique<SocketListener>(
      std::move(address),
      [host = std::make_shared<rpc::backends::StreamHost>(std::move(accept), frame_bytes_max)](
          auto socket, auto visitor) { host->take(std::move(socket), std::move(visitor)); });
}

}  // namespace cohort::testing
