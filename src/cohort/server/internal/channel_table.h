// SPDX-License-Identifier: Apache-2.0
// The open data channels of a server: each greets first, then talks to its coordinator's job.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "cohort/core/mutex.h"
#include "cohort/rpc/channel.h"
#include "cohort/rpc/health.h"
#include "cohort/rpc/refusal_log.h"
#include "cohort/server/internal/job.h"

namespace cohort::server {

// Thread-safe. Once close_all() has returned true no handler of its channels runs.
class ChannelTable {
 public:
  // The job a greeting belongs to; throws what the caller should hear. `errors` takes what the
  // job's own tasks have heard.
  using Greet = std::function<std::shared_ptr<Job>(const rpc::Hello& hello)>;
  explicit ChannelTable(
      Greet greet, std::shared_ptr<rpc::RefusalLog> refusals = std::make_shared<rpc::RefusalLog>(),
      std::shared_ptr<rpc::ErrorRecord> errors = std::make_shared<rpc::ErrorRecord>());

  // Throws when all are closed.
  rpc::Channel::Handlers accept(std::shared_ptr<rpc::Channel> channel);
  // What becomes of the channels of this task, greeted under this start of the coordinator: none is
  // left; one answers, and so lives; all are silent, as one whose host has gone is. Waits for the
  // first until `gone_by`, since who lives may be about to go, and then for the second until
  // `answer_by`. Throws unavailable after end_waits().
  enum class Presence : std::uint8_t { gone, alive, silent };
  Presence presence(const std::string& task, std::uint64_t coordinator_incarnation,
                    Deadline gone_by, Deadline answer_by);
  void end_waits() noexcept;
  // How many messages have ended their connection (violation.h).
  std::uint64_t violations() const noexcept;
  // How many connections of the job's tasks have ended that were not closed here.
  std::uint64_t losses() const noexcept;
  // Closes all of that start of the coordinator. Their peers hear why, if they still read.
  void close_of(std::uint64_t coordinator_incarnation, const Error& why) noexcept;
  // Closes all, once what they have queued is on its way, which may take until the first deadline,
  // and takes no more. Waits for their handlers until the second; false where one still runs: its
  // channel is left behind.
  bool close_all(Deadline sent_by, Deadline ended_by) noexcept;

 private:
  struct Peer;
  struct Shared;
  static void receive(Shared& shared, Peer& peer, rpc::Frame frame);
  static void refuse(Shared& shared, rpc::Channel& channel, const Error& error,
                     std::optional<std::uint64_t> request);
  static void greet_back(rpc::Channel& channel, std::uint64_t id, rpc::PayloadChecksums wish);
  static void close_when_sent(const std::vector<std::shared_ptr<rpc::Channel>>& channels,
                              Deadline sent_by) noexcept;
  static void check_open(Shared& shared);
  static void note_hello(Shared& shared, const rpc::Channel* channel, const rpc::Hello& hello);
  static void note_answer(Shared& shared, const rpc::Channel* channel);
  static void note_broken(Shared& shared, const Peer& peer, const Error& reason);
  static void take_leave(Shared& shared, Peer& peer, const rpc::Channel* key);

  // With the channels' handlers: a channel's thread may still leave one when the table has gone.
  const std::shared_ptr<Shared> shared_;
};

}  // namespace cohort::server
