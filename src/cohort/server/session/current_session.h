// SPDX-License-Identifier: Apache-2.0
// The session that a task serves, and which start of a coordinator may take it over.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "cohort/core/mutex.h"
#include "cohort/rpc/control.h"
#include "cohort/server/links/channel_table.h"
#include "cohort/server/session/session.h"

namespace cohort::server {

// Thread-safe.
class CurrentSession {
 public:
  // `options`: what the sessions of the task have in common. The data timeout is for coordinators
  // that ask for none.
  explicit CurrentSession(SessionOptions options) : options_(std::move(options)) {}

  // Throws if the caller is of another job, or expects another task, or another version.
  void check_caller(const rpc::HandshakeRequest& request) const;
  // Returns the session of this start of the coordinator; makes it if this start may take over.
  // `channels` are those of the task.
  std::shared_ptr<Session> take(const rpc::HandshakeRequest& request, const rpc::Caller& caller,
                                ChannelTable& channels);
  // The caller then acts only on this session, even if another one replaces it meanwhile. Throws if
  // it is not the current one.
  std::shared_ptr<Session> of(const rpc::Caller& caller) const;
  std::shared_ptr<Session> of(std::uint64_t coordinator_incarnation) const;
  // Returns the session that a hello names; throws the error that is sent to the peer.
  std::shared_ptr<Session> greet(const rpc::Hello& hello) const;
  // Null if there is none.
  std::shared_ptr<Session> get() const;
  // The incarnation of the shared job that the task serves; 0 if it serves none.
  std::uint64_t shared_job() const;
  // Returns the last session, which the caller ends; later calls of take() throw.
  std::shared_ptr<Session> leave();

 private:
  static constexpr std::size_t kForeignNameMax = 64;  // characters to show of a stranger's name
  // How long to wait for the end of the connections of a coordinator that has ended just before the
  // next one came.
  static constexpr auto kFarewell = std::chrono::seconds(1);
  // How long to wait for an answer of a coordinator that has not ended: longer than a busy host
  // takes.
  static constexpr auto kSignOfLife = std::chrono::seconds(10);

  void check_job(const std::string& job_id) const;
  std::shared_ptr<Session> check_only_coordinator(const rpc::HandshakeRequest& request,
                                                  ChannelTable& channels) const;
  // Once for each start of a coordinator, only in a parameter server.
  void say_restarted(std::uint64_t coordinator_incarnation) const;
  std::shared_ptr<Session> take_over(const rpc::HandshakeRequest& request,
                                     const std::shared_ptr<Session>& expected,
                                     const rpc::Caller& caller, ChannelTable& channels);

  const SessionOptions options_;
  mutable Mutex mutex_;
  std::shared_ptr<Session> session_ COHORT_GUARDED_BY(mutex_);
  // The incarnations of the coordinators that were replaced by another one.
  std::set<std::uint64_t> replaced_ COHORT_GUARDED_BY(mutex_);
  // The incarnations of the coordinators whose variables this task has lost by a restart.
  mutable std::set<std::uint64_t> told_of_restart_ COHORT_GUARDED_BY(mutex_);
  bool is_refusing_ COHORT_GUARDED_BY(mutex_) = false;  // the task has ended the last session
};

}  // namespace cohort::server
