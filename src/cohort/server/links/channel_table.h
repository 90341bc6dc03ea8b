// SPDX-License-Identifier: Apache-2.0
// The open data channels of a server. The first message of a channel is a hello, which names a
// coordinator; further messages go to the session of that coordinator.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "cohort/core/clock.h"
#include "cohort/core/mutex.h"
#include "cohort/rpc/channel.h"
#include "cohort/rpc/error_record.h"
#include "cohort/rpc/refusal_log.h"
#include "cohort/server/session/session.h"

namespace cohort::server {

// Thread-safe. After close_all() has returned true, no handler of its channels runs.
class ChannelTable {
 public:
  // Returns the session that a hello names; throws the error that is sent to the peer. `errors`
  // records the errors that were sent to tasks of the job.
  using Greet = std::function<std::shared_ptr<Session>(const rpc::Hello& hello)>;
  explicit ChannelTable(
      Greet greet, std::shared_ptr<rpc::RefusalLog> refusals = std::make_shared<rpc::RefusalLog>(),
      std::shared_ptr<rpc::ErrorRecord> errors = std::make_shared<rpc::ErrorRecord>());

  // Throws after close_all().
  rpc::Channel::Handlers accept(std::shared_ptr<rpc::Channel> channel);
  // The state of the channels that this task has opened under this start of the coordinator: all
  // are closed (gone); one answers (alive); or none answers, as after the loss of a host (silent).
  // First waits until `gone_by` for the channels to close, since the task may be ending, and then
  // until `answer_by` for an answer. Throws unavailable after end_waits().
  enum class Presence : std::uint8_t { gone, alive, silent };
  Presence presence(const std::string& task, std::uint64_t coordinator_incarnation,
                    Deadline gone_by, Deadline answer_by);
  // Waits until the coordinator of the session has opened a channel, or another one has replaced
  // it; or until the deadline, or end_waits().
  void await_coordinator(const Session& session, Deadline deadline);
  void end_waits() noexcept;
  // The number of messages that ended their connection (task_errors.h).
  std::uint64_t protocol_errors() const noexcept;
  // The number of connections of the job's tasks that ended without being closed here.
  std::uint64_t losses() const noexcept;
  // For how long no task of the job has had a channel; nullopt if one has, or none ever had.
  std::optional<Duration> unused_for() const;
  // Closes all channels of that start of the coordinator, and first sends them the error.
  void close_of(std::uint64_t coordinator_incarnation, const Error& why) noexcept;
  // Closes all channels and accepts no more. Waits until the first deadline for queued frames to be
  // sent, and until the second one for handlers to return. Returns false if one still runs; then
  // its channel is left behind.
  bool close_all(Deadline sent_by, Deadline ended_by) noexcept;

 private:
  struct Peer;
  struct Shared;

  // Shared with the handlers of the channels, because a channel's thread may still be in a handler
  // when the table is destroyed.
  const std::shared_ptr<Shared> shared_;
};

}  // namespace cohort::server
