// SPDX-License-Identifier: Apache-2.0
// The messages by which processes form groups. Each is a header (magic, version, length, CRC-32C)
// and a body; a process asks, and the process that listens replies.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cohort/collective/detail/links.h"
#include "cohort/core/bytes.h"
#include "cohort/core/error.h"

namespace cohort::collective::formation {

// Begins each message. A value type.
struct Header {
  static constexpr std::size_t kBytes = 16;
  std::uint32_t body_bytes = 0;
  std::uint32_t checksum = 0;

  // Throws data_loss if it is not a header of this protocol, or the body is larger than bytes_max;
  // failed_precondition if it has another version.
  static Header decode(std::span<const std::byte, kBytes> bytes, std::size_t bytes_max);
  // Throws data_loss if the body is not the one that was sent.
  void check(std::span<const std::byte> body) const;
};

// One start of the process of a task.
struct Member {
  int task = 0;  // the index among all workers
  std::uint64_t incarnation = 0;
  bool operator==(const Member&) const = default;
};

// Who asks; all but `self` must be equal in all processes.
struct Identity {
  std::string job = {};
  std::string options = {};  // ProcessGroupOptions::options
  std::uint64_t tasks_hash = 0;
  std::string torch_version = {};
  Member self = {};
};

// A group that a process was in, so that it has its values; the first group has number 1.
struct PastGroup {
  std::uint64_t number = 0;
  std::vector<Member> members = {};
};

// What a process tells the one that leads the formation.
struct Join {
  PastGroup last = {};
  std::uint64_t number_max = 0;     // the largest number of a group that it has heard of
  std::vector<Member> missed = {};  // members of its last group which did not answer
  std::int64_t remaining_ms = -1;   // until its deadline; -1: it has none
  std::uint64_t accepted = 0;       // the number of the group that it is prepared for
  // The largest number that was proposed to it or by it, in its life. A leader that the others have
  // given up may have formed that group, so none of them may have the number again.
  std::uint64_t proposed_max = 0;
  std::string host = {};
  std::int64_t process = 0;
};

// Opens one connection between two members of a group.
struct LinkHello {
  std::uint64_t group = 0;
  SplitPath path = {};
  int lane = 0;
  int lanes = 0;
  // Identifies a connection of a member.
  auto operator<=>(const LinkHello&) const = default;
};

enum class RequestKind : std::uint8_t { probe = 1, join = 2, link = 3 };

struct Request {
  RequestKind kind = RequestKind::probe;
  Identity from = {};
  int to = 0;  // the task that should be at this address
  Join join = {};
  LinkHello link = {};
};

struct ProposedMember {
  Member who = {};
  std::string host = {};
  std::int64_t process = 0;
  bool is_new = false;
};

// A group that is to be formed.
struct Proposal {
  std::uint64_t number = 0;
  std::uint64_t last = 0;  // of the group whose values it goes on from; 0: it is the first one
  std::vector<ProposedMember> members = {};  // in the order of tasks
};

enum class ReplyKind : std::uint8_t {
  refused = 1,  // error_code and text
  not_forming = 2,
  forming = 3,    // the answer to probe
  try_again = 4,  // the process does not lead
  waiting = 5,    // for the tasks `missing`
  prepare = 6,    // `proposal`
  committed = 7,  // the group that the asking process has accepted
  linked = 8,
};

struct Reply {
  ReplyKind kind = ReplyKind::refused;
  std::uint64_t incarnation = 0;  // of the process that replies
  std::uint64_t number = 0;       // of the group that it has entered last
  std::uint64_t last = 0;         // of the group whose values it has
  ErrorCode code = ErrorCode::unavailable;
  std::string text = {};
  std::vector<int> missing = {};
  std::uint64_t left_behind = 0;  // Roster::left_behind()
  Proposal proposal = {};
};

// With a header.
Bytes encode(const Request& request);
Bytes encode(const Reply& reply);
// Of a body. They throw data_loss.
Request decode_request(std::span<const std::byte> body);
Reply decode_reply(std::span<const std::byte> body);

// The error of a process that asks another one, because they are of different jobs, lists of tasks
// or versions; nullopt if they agree.
std::optional<Error> disagreement(const Identity& asking, const Identity& asked);

}  // namespace cohort::collective::formation
