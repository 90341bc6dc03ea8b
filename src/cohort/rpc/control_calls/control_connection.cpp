// SPDX-License-Identifier: Apache-2.0
#include "cohort/rpc/control_calls/control_connection.h"

#include <utility>

#include "cohort/rpc/control_calls/grpc_setup.h"
#include "cohort/rpc/sockets/connect.h"

namespace cohort::rpc::internal {

ControlConnection::Connection::Connection(const net::HostPort& where, const addrinfo& addresses)
    : channel(open_grpc_channel(where, addresses)), stub(channel) {}

bool ControlConnection::Connection::is_lost() const {
  const grpc_connectivity_state state = channel->GetState(false);
  return state == GRPC_CHANNEL_TRANSIENT_FAILURE || (state == GRPC_CHANNEL_IDLE && has_served);
}

ControlConnection::ControlConnection(const std::string& address, const std::string& task,
                                     net::GetAddresses get_addresses)
    : address_(address),
      task_(task),
      where_(net::parse_address(address)),
      get_addresses_(std::move(get_addresses)) {}

std::shared_ptr<ControlConnection::Connection> ControlConnection::open() {
  const Lock lock(mutex_);
  return has_connection() ? connection_ : nullptr;
}

std::shared_ptr<ControlConnection::Connection> ControlConnection::get(Deadline deadline) {
  std::shared_ptr<net::Lookup> asked;
  {
    const Lock lock(mutex_);
    if (has_connection()) return connection_;
    asked = lookup();
  }
  const auto found = asked->wait(deadline, [this] { return is_cancelled_.load(); });
  const Lock lock(mutex_);
  if (found && lookup_ == asked) lookup_.reset();
  if (has_connection()) return connection_;  // made by another call meanwhile
  if (!found && is_cancelled_) return nullptr;
  if (!found || !found->list) throw unresolved_error({task_, address_, "grpc"}, found);
  connection_ = std::make_shared<Connection>(where_, *found->list);
  return connection_;
}

bool ControlConnection::waits_for_name() {
  const Lock lock(mutex_);
  return !has_connection() && !lookup()->wait(Deadline::after(Duration::zero()));
}

void ControlConnection::leave(const std::shared_ptr<Connection>& ended) {
  const Lock lock(mutex_);
  if (connection_ == ended) connection_.reset();
}

void ControlConnection::cancel() noexcept {
  std::shared_ptr<net::Lookup> lookup;
  {
    const Lock lock(mutex_);
    is_cancelled_ = true;
    lookup = lookup_;
  }
  if (lookup) lookup->wake();
}

bool ControlConnection::has_connection() {
  if (connection_ && connection_->is_lost()) connection_.reset();
  return connection_ != nullptr;
}

// Each connection gets a new lookup; but one whose caller gave up waiting goes on for the next.
std::shared_ptr<net::Lookup> ControlConnection::lookup() {
  if (!lookup_) lookup_ = net::start_look_up(where_, false, get_addresses_);
  return lookup_;
}

}  // namespace cohort::rpc::internal
