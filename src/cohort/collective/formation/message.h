// SPDX-License-Identifier: Apache-2.0
// The messages by which processes form groups. Each is a header (magic, version, length, CRC-32C)
// and a body; a process asks, and the process that listens replies.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cohort/collective/group.h"
#include "cohort/collective/links.h"
#include "cohort/collective/member_status.h"
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
  GroupBackend backend = GroupBackend::automatic;
  std::string options = {};  // ProcessGroupOptions::options
  std::uint64_t tasks_hash = 0;
  // "worker:0 10.0.0.1:2222", a line for each task; of a long list only the beginning, since each
  // question carries it.
  std::string tasks = {};
  std::string torch_version = {};
  Member self = {};
};

// By what others can tell later that a process has ended. The texts are hashed, since each question
// of a process that joins has the places of all members.
struct Place {
  std::uint64_t host = 0;                     // hash of own_host(); 0: not known
  std::int64_t process = 0;                   // its number on that host
  std::vector<std::uint64_t> addresses = {};  // at which it listens: address_hash()
};

// Equal for two processes if they run on one host, by one user and in the same namespaces, so that
// they can open each other's files in /proc. Different for each process if the system does not say.
std::string own_host();
// Whether it was a process of this host and has ended. False if it is not known.
bool has_ended(const Place& place);

// A group that a process was in, so that it has its values; the first group has number 1.
struct PastGroup {
  std::uint64_t number = 0;
  std::vector<Member> members = {};  // in the order of tasks
  std::vector<Place> places = {};    // of the members; empty: not known
};

// A process sends this to the one that leads the formation.
struct Join {
  PastGroup last = {};
  std::uint64_t number_max = 0;     // the largest number of a group that it has heard of
  std::vector<Member> missed = {};  // members of its last group which did not answer
  std::int64_t remaining_ms = -1;   // until its deadline; -1: it has none
  std::uint64_t accepted = 0;       // the number of the group that it is prepared for
  // A newer group than `last` that it has accepted. It may have been formed without its knowledge.
  PastGroup pending = {};
  // The largest number that was proposed to it or by it, in its life. A leader that the others have
  // given up may have formed that group, so none of them may have the number again.
  std::uint64_t proposed_max = 0;
  std::string host = {};
  std::int64_t process = 0;
  std::vector<std::uint64_t> addresses = {};  // as in Place
  // Members of its last group have told it that they go on without it.
  bool is_given_up = false;
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

// left_out: a group was formed without this process, although it was in the last one.
// differs: the sender fails, because a process cannot be in a group with it.
// status: the sender is no worker, and asks how far this one is; of `from` only the job counts.
enum class RequestKind : std::uint8_t {
  probe = 1,
  join = 2,
  link = 3,
  left_out = 4,
  differs = 5,
  status = 6,
};

struct Request {
  RequestKind kind = RequestKind::probe;
  Identity from = {};
  int to = 0;  // the task that should be at this address
  Join join = {};
  LinkHello link = {};
  std::uint64_t left_out_of = 0;  // the number of the group
  int different = 0;              // the task whose process differs
  std::string difference = {};    // the message of the error
};

struct ProposedMember {
  Member who = {};
  std::string host = {};
  std::int64_t process = 0;
  std::vector<std::uint64_t> addresses = {};  // as in Place
  bool is_new = false;
};

// A group that is to be formed.
struct Proposal {
  std::uint64_t number = 0;
  std::uint64_t last = 0;  // of the group whose values it goes on from; 0: it is the first one
  std::vector<ProposedMember> members = {};  // in the order of tasks
};

PastGroup past_group_of(const Proposal& proposal);

// Why those who have come may not form a group.
enum class Obstacle : std::uint8_t {
  none = 0,
  left_behind = 1,  // others have formed a newer group
  minority = 2,     // those who have not come may be alive, and form another group
  given_up = 3,     // the others of its last group go on without this process, and have not come
};

// The reason why a process waits, as the process that leads reports it.
struct Lack {
  std::vector<int> missing = {};  // the expected tasks that have not joined
  // The number of the group that others are in without this process and all that have joined; 0 if
  // there is none.
  std::uint64_t left_behind = 0;
  Obstacle obstacle = Obstacle::none;  // to a group with this process
  // Whether nobody can come who would remove the obstacle, so that this process must end. One that
  // was in no group goes on waiting for all.
  bool is_final = false;
};

enum class ReplyKind : std::uint8_t {
  refused = 1,  // error_code and text
  not_forming = 2,
  forming = 3,    // the answer to probe
  try_again = 4,  // the process does not lead
  waiting = 5,    // because of `lack`
  prepare = 6,    // `proposal`
  committed = 7,  // the group that the asking process has accepted
  linked = 8,
  status = 9,  // then the connection is closed
};

struct Reply {
  ReplyKind kind = ReplyKind::refused;
  std::uint64_t incarnation = 0;  // of the process that replies
  std::uint64_t number = 0;       // of the group that it has entered last
  std::uint64_t last = 0;         // of the group whose values it has
  ErrorCode code = ErrorCode::unavailable;
  std::string text = {};
  Lack lack = {};
  Proposal proposal = {};
  MemberStatus status = {};  // only for that kind
};

// With a header.
Bytes encode(const Request& request);
Bytes encode(const Reply& reply);
// These read a body. They throw data_loss.
Request decode_request(std::span<const std::byte> body);
Reply decode_reply(std::span<const std::byte> body);

// The error of a process `own` that `other` cannot be in a group with it, because they are of
// different jobs, lists of tasks, options or versions; it names the first difference. nullopt if
// they agree.
std::optional<Error> disagreement(const Identity& own, const Identity& other);
// Whether they differ, but are workers of one job all the same, and no process of another job has
// come to a wrong address.
bool is_mistake_of_one_job(const Identity& own, const Identity& other);

}  // namespace cohort::collective::formation
