// SPDX-License-Identifier: Apache-2.0
#include "cohort/parameter_server/server_links.h"

#include <optional>
#include <sstream>
#include <utility>

namespace cohort::parameter_server {

ServerLinks::ServerLinks(Options options) : options_(std::move(options)) {}

void ServerLinks::set(const rpc::Membership& membership) {
  const Lock lock(mutex_);
  if (membership.epoch < epoch_) return;
  epoch_ = membership.epoch;
  for (const rpc::Member& server : membership.servers) {
    std::shared_ptr<Link>& link = links_[server.id];
    if (!link) link = std::make_shared<Link>();
    const Lock of_link(link->mutex);
    link->server = server;
  }
}

rpc::Membership ServerLinks::membership() const {
  const Lock lock(mutex_);
  rpc::Membership membership{.epoch = epoch_, .servers = {}};
  for (const auto& [id, link] : links_) {
    const Lock of_link(link->mutex);
    membership.servers.push_back(link->server);
  }
  return membership;
}

std::shared_ptr<ServerLinks::Link> ServerLinks::find(rpc::MemberId server) const {
  const Lock lock(mutex_);
  const auto link = links_.find(server);
  COHORT_CHECK(link != links_.end(), ErrorCode::invalid_argument,
               "[server.connect] expected a server that the coordinator has named to ",
               options_.self, ", got number ", server);
  return link->second;
}

std::string ServerLinks::name_of(rpc::MemberId server) const {
  const Lock lock(mutex_);
  const auto link = links_.find(server);
  if (link == links_.end()) return "server " + std::to_string(server);
  const Lock of_link(link->second->mutex);
  return link->second->server.task;
}

rpc::Connection ServerLinks::last(rpc::MemberId server) const {
  const std::shared_ptr<Link> link = find(server);
  const Lock lock(link->mutex);
  return link->connection;
}

std::vector<std::shared_ptr<rpc::Requester>> ServerLinks::last_channels() const {
  std::vector<std::shared_ptr<rpc::Requester>> channels;
  const Lock lock(mutex_);
  for (const auto& [id, link] : links_) {
    const Lock of_link(link->mutex);
    channels.push_back(link->connection.data);
  }
  return channels;
}

rpc::Connection ServerLinks::get(rpc::MemberId id) {
  const std::shared_ptr<Link> link = find(id);
  const auto open = [&]() -> std::optional<rpc::Connection> {
    const Lock lock(link->mutex);
    const rpc::Connection& now = link->connection;
    if (!now.data || !now.data->is_open()) return std::nullopt;
    return now;
  };
  if (const auto connection = open()) return *connection;
  const Lock connecting(link->connecting);
  if (const auto connection = open()) return *connection;
  rpc::Member server;
  {
    const Lock lock(link->mutex);
    server = link->server;
    if (link->connection.data && !std::exchange(link->is_lost, true)) ++losses_;
  }
  expect_open(server.task);
  rpc::Connection made = connect(*link, server);
  if (server.incarnation != 0 && made.incarnation != server.incarnation)
    throw restarted_error(server.task, made.incarnation);
  put(id, made);
  return made;
}

rpc::Connection ServerLinks::connect(Link& link, const rpc::Member& server) {
  bool was_silent = false;
  {
    const Lock lock(link.mutex);
    was_silent = link.was_silent;
  }
  const Duration patience = was_silent ? options_.patience_after_silence : options_.data_timeout;
  try {
    return options_.connect(server, patience, [this] { return is_closed_.load(); });
  } catch (const Error& error) {
    expect_open(server.task);
    if (error.code() != ErrorCode::deadline_exceeded)
      throw error.origin().empty() ? Error(error).at(server.task) : error;
    const Lock lock(link.mutex);
    link.was_silent = true;
    const Duration before = was_silent ? options_.data_timeout : Duration::zero();
    throw late_error("connect", "an answer", server.task, before + patience);
  }
}

// Destroys the old connection outside of the lock, since that waits for its thread.
void ServerLinks::put(rpc::MemberId server, rpc::Connection connection) {
  const std::shared_ptr<Link> link = find(server);
  const Lock lock(link->mutex);
  link->server.incarnation = connection.incarnation;
  link->is_lost = link->was_silent = false;
  std::swap(link->connection, connection);
}

void ServerLinks::note_silence(rpc::MemberId server) {
  const std::shared_ptr<Link> link = find(server);
  const Lock lock(link->mutex);
  link->was_silent = true;
}

void ServerLinks::expect_open(const std::string& server) const {
  if (!is_closed_) return;
  throw Error(ErrorCode::cancelled,
              "[server.connect] " + options_.self + " ends: it asks nothing more of " + server)
      .at(options_.self);
}

void ServerLinks::close() noexcept {
  is_closed_ = true;
  std::map<rpc::MemberId, std::shared_ptr<Link>> links;
  {
    const Lock lock(mutex_);
    links = links_;
  }
  for (const auto& [id, link] : links) {
    const Lock connecting(link->connecting);  // so that no connection is made afterwards
    const Lock lock(link->mutex);
    if (link->connection.data) link->connection.data->leave();
  }
}

Error restarted_error(const std::string& server, std::uint64_t incarnation) {
  return Error(ErrorCode::unavailable,
               "[server.connect] " + server +
                   " was restarted and has lost its variables; start the coordinator again",
               ErrorCause::handle_lost)
      .at(server, incarnation);
}

Error late_error(const std::string& operation, const std::string& expected,
                 const std::string& server, Duration waited) {
  std::ostringstream text;
  text << "[server." << operation << "] expected " << expected << " from " << server << " within "
       << std::chrono::duration<double>(waited).count() << " s, got none; see whether " << server
       << " or its host hangs, or raise ClusterOptions::data_timeout";
  return Error(ErrorCode::deadline_exceeded, text.str()).at(server);
}

}  // namespace cohort::parameter_server
