// SPDX-License-Identifier: Apache-2.0
// The common part of channels whose frames travel over a connection.
#pragma once

#include <functional>
#include <memory>
#include <thread>
#include <utility>

#include "cohort/rpc/channel.h"
#include "cohort/rpc/frames/channel_end.h"
#include "cohort/rpc/sockets/acceptor.h"

namespace cohort::rpc::internal {

// Thread-safe. `Connection` sends frames and knows its end(), a ChannelEnd.
template <class Connection>
class ConnectedChannel : public Channel {
 public:
  // `visitor`: null unless the connection is a stranger's until admit().
  explicit ConnectedChannel(std::shared_ptr<Connection> connection,
                            std::shared_ptr<Visitor> visitor = nullptr)
      : connection_(std::move(connection)), visitor_(std::move(visitor)) {}
  // If a handler drops the last handle, this runs on the connection's thread, which ends after the
  // handler.
  ~ConnectedChannel() override {
    connection_->close();
    if (!thread_.joinable()) return;
    if (connection_->end().is_own_thread()) {
      thread_.detach();
    } else {
      thread_.join();
    }
  }

  // Starts the thread that runs the connection. If the system cannot start one, calls on_closed,
  // because the accepting code may keep the channel until then.
  void start(Handlers handlers) {
    connection_->end().set_handlers(std::move(handlers));
    try {
      thread_ = start_thread([connection = connection_] { connection->run(); });
    } catch (...) {
      connection_->end().set_closed(current_error());
      connection_->end().finish();
      throw;
    }
  }

  void send(Frame frame) override { connection_->send(std::move(frame)); }
  void close() noexcept override { connection_->close(); }
  bool receive_as_guest(const Guest& guest, Deadline deadline) override {
    if constexpr (requires { connection_->receive_as_guest(guest, deadline); }) {
      return connection_->receive_as_guest(guest, deadline);
    } else {
      return false;
    }
  }
  void resume() noexcept override {
    if constexpr (requires { connection_->resume(); }) connection_->resume();
  }
  std::size_t queued_bytes() const override { return connection_->queued_bytes(); }
  Progress progress() const override { return connection_->progress(); }
  const std::string& peer() const override { return connection_->end().text(); }
  net::HostProof host_proof() const override { return connection_->host_proof(); }
  void set_payload_checksums(bool are_on) noexcept override {
    connection_->set_payload_checksums(are_on);
  }
  void admit() override {
    if (!visitor_) return;
    connection_->set_frame_bytes_max(kFrameBytesMax);
    visitor_->admit();
  }

  // For AcceptedChannels; empty if the connection was never a stranger's.
  std::function<bool()> is_stranger() const {
    if (!visitor_) return nullptr;
    return [visitor = visitor_] { return !visitor->is_admitted(); };
  }

 protected:
  // Shared with the thread that runs it, which may outlive this object.
  const std::shared_ptr<Connection> connection_;
  std::thread thread_;

 private:
  const std::shared_ptr<Visitor> visitor_;
};

}  // namespace cohort::rpc::internal
