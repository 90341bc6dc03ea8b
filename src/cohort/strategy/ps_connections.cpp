// SPDX-License-Identifier: Apache-2.0
// The coordinator's connections to parameter servers after start-up.
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "cohort/core/log.h"
#include "cohort/rpc/lost_server.h"
#include "cohort/strategy/cluster_connection.h"

namespace cohort {
namespace {

void warn_of_wait(const std::string& task, Duration timeout, const Error& error) {
  log_warn("no connection to ", task, ": a call that needs its variables waits for it, ",
           std::chrono::duration<double>(timeout).count(), " s at most (ClusterOptions::timeout); ",
           error.message());
}

}  // namespace

rpc::Connection ClusterConnection::ps(std::uint32_t ps) {
  const Task& task = ps_.at(ps);
  {
    const Lock lock(mutex_);
    const rpc::Connection& now = ps_connections_[ps];
    if (now.data && now.data->is_open()) return now;
  }
  const Lock one(connecting_);
  rpc::Connection old;
  {
    const Lock lock(mutex_);
    const rpc::Connection& now = ps_connections_[ps];
    if (now.data && now.data->is_open()) return now;
    old = now;
  }
  // The server may have lost only its connections, or may be starting again, so this waits for it.
  rpc::ConnectionOptions options = options_for(task, 0, control_deadline());
  options.on_retry = [&](const Error& error) { warn_of_wait(task.name, options_.timeout, error); };
  rpc::Connection made;
  try {
    made = connect_to(task, options);
  } catch (const Error& error) {
    if (error.cause() != ErrorCause::peer_lost) throw;
    throw rpc::as_lost_server(error);
  }
  if (old.data && made.incarnation != old.incarnation) {
    throw Error(ErrorCode::unavailable,
                "[strategy.connect] " + task.name +
                    " was restarted: its variables are lost; start the coordinator again",
                ErrorCause::handle_lost)
        .at(task.name, made.incarnation);
  }
  const Lock lock(mutex_);
  ps_connections_[ps] = made;
  return made;
}

std::vector<std::shared_ptr<rpc::Requester>> ClusterConnection::ps_links() const {
  std::vector<std::shared_ptr<rpc::Requester>> links;
  const Lock lock(mutex_);
  for (const rpc::Connection& connection : ps_connections_) links.push_back(connection.data);
  return links;
}

}  // namespace cohort
