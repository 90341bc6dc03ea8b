// SPDX-License-Identifier: Apache-2.0
// The coordinator's connections to parameter servers after start-up.
#include <chrono>

#include "cohort/core/log.h"
#include "cohort/parameter_server_strategy/cluster_connection.h"
#include "cohort/rpc/lost_server.h"

namespace cohort {

// The server may have lost only its connections, or may be starting again, so this waits for it.
rpc::Connection ClusterConnection::connect_server(const rpc::Member& server) {
  rpc::ConnectionOptions options = options_for(ps_.at(server.id), 0, control_deadline());
  options.on_retry = [&](const Error& error) {
    log_warn("no connection to ", server.task, ": a call that needs its variables waits for it, ",
             std::chrono::duration<double>(options_.timeout).count(),
             " s at most (ClusterOptions::timeout); ", error.message());
  };
  return connect_to(ps_.at(server.id), options);
}

rpc::Connection ClusterConnection::ps(std::uint32_t ps) {
  try {
    return servers_->get(ps);
  } catch (const Error& error) {
    if (error.cause() != ErrorCause::peer_lost) throw;
    throw rpc::as_lost_server(error);
  }
}

}  // namespace cohort
