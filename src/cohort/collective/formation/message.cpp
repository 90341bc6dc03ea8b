// SPDX-License-Identifier: Apache-2.0
#include "cohort/collective/formation/message.h"

#include <algorithm>
#include <cstring>
#include <string_view>
#include <utility>

#include "cohort/collective/formation/own_host.h"
#include "cohort/core/crc32c.h"

namespace cohort::collective::formation {
namespace {

constexpr std::uint32_t kMagic = 0x50474843;  // "CHGP"
constexpr std::uint32_t kProtocolVersion = 3;

Bytes with_header(const Bytes& body) {
  const std::array<std::uint32_t, 4> words{kMagic, kProtocolVersion,
                                           static_cast<std::uint32_t>(body.size()), crc32c(body)};
  Bytes message(Header::kBytes + body.size());
  for (std::size_t i = 0; i < Header::kBytes; ++i)
    message[i] = static_cast<std::byte>(words[i / 4] >> (8 * (i % 4)));
  std::memcpy(message.data() + Header::kBytes, body.data(), body.size());
  return message;
}

void write(ByteWriter& out, const Member& member) {
  out.zigzag(member.task);
  out.u64(member.incarnation);
}

Member read_member(ByteReader& in) {
  const int task = static_cast<int>(in.zigzag());
  return {task, in.u64()};
}

void write(ByteWriter& out, const std::vector<Member>& members) {
  out.varint(members.size());
  for (const Member& member : members) write(out, member);
}

std::vector<Member> read_members(ByteReader& in) {
  std::vector<Member> members(in.count(9));
  for (Member& member : members) member = read_member(in);
  return members;
}

void write(ByteWriter& out, const std::vector<std::uint64_t>& hashes) {
  out.varint(hashes.size());
  for (const std::uint64_t hash : hashes) out.u64(hash);
}

std::vector<std::uint64_t> read_hashes(ByteReader& in) {
  std::vector<std::uint64_t> hashes(in.count(8));
  for (std::uint64_t& hash : hashes) hash = in.u64();
  return hashes;
}

void write(ByteWriter& out, const std::vector<Place>& places) {
  out.varint(places.size());
  for (const Place& place : places) {
    out.u64(place.host);
    out.zigzag(place.process);
    write(out, place.addresses);
  }
}

std::vector<Place> read_places(ByteReader& in) {
  std::vector<Place> places(in.count(10));
  for (Place& place : places) {
    place.host = in.u64();
    place.process = in.zigzag();
    place.addresses = read_hashes(in);
  }
  return places;
}

void write(ByteWriter& out, const PastGroup& group) {
  out.u64(group.number);
  write(out, group.members);
  write(out, group.places);
}

PastGroup read_past_group(ByteReader& in) {
  PastGroup group{.number = in.u64()};
  group.members = read_members(in);
  group.places = read_places(in);
  return group;
}

bool read_flag(ByteReader& in) {
  const std::uint8_t byte = in.u8();
  if (byte > 1) in.fail("0 or 1");
  return byte == 1;
}

void write(ByteWriter& out, const Join& join) {
  write(out, join.last);
  out.u64(join.number_max);
  write(out, join.missed);
  out.zigzag(join.remaining_ms);
  out.u64(join.accepted);
  write(out, join.pending);
  out.u64(join.proposed_max);
  out.text(join.host);
  out.zigzag(join.process);
  write(out, join.addresses);
  out.u8(join.is_given_up ? 1 : 0);
}

Join read_join(ByteReader& in) {
  Join join;
  join.last = read_past_group(in);
  join.number_max = in.u64();
  join.missed = read_members(in);
  join.remaining_ms = in.zigzag();
  join.accepted = in.u64();
  join.pending = read_past_group(in);
  join.proposed_max = in.u64();
  join.host = in.text();
  join.process = in.zigzag();
  join.addresses = read_hashes(in);
  join.is_given_up = read_flag(in);
  return join;
}

void write(ByteWriter& out, const LinkHello& link) {
  out.u64(link.group);
  out.varint(link.path.size());
  for (const std::uint64_t number : link.path) out.varint(number);
  out.zigzag(link.lane);
  out.zigzag(link.lanes);
}

LinkHello read_link(ByteReader& in) {
  LinkHello link;
  link.group = in.u64();
  link.path.resize(in.count());
  for (std::uint64_t& number : link.path) number = in.varint();
  link.lane = static_cast<int>(in.zigzag());
  link.lanes = static_cast<int>(in.zigzag());
  return link;
}

void write(ByteWriter& out, const Proposal& proposal) {
  out.u64(proposal.number);
  out.u64(proposal.last);
  out.varint(proposal.members.size());
  for (const ProposedMember& member : proposal.members) {
    write(out, member.who);
    out.text(member.host);
    out.zigzag(member.process);
    write(out, member.addresses);
    out.u8(member.is_new ? 1 : 0);
  }
}

Proposal read_proposal(ByteReader& in) {
  Proposal proposal;
  proposal.number = in.u64();
  proposal.last = in.u64();
  proposal.members.resize(in.count(12));
  for (ProposedMember& member : proposal.members) {
    member.who = read_member(in);
    member.host = in.text();
    member.process = in.zigzag();
    member.addresses = read_hashes(in);
    member.is_new = in.u8() != 0;
  }
  return proposal;
}

std::string name_of(GroupBackend backend) {
  constexpr std::array kNames{"automatic", "shared_memory", "tcp", "mpi"};
  const auto i = static_cast<std::size_t>(backend);
  return std::string("GroupBackend::") + (i < kNames.size() ? kNames[i] : "of another version");
}

std::vector<std::string> parts_of(std::string_view text, char separator) {
  std::vector<std::string> parts;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find(separator), text.size());
    const std::size_t begin = std::min(text.find_first_not_of(' '), end);
    parts.emplace_back(text.substr(begin, end - begin));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return parts;
}

// The first part that only one of them has at its place.
std::pair<std::string, std::string> first_difference(std::string_view mine, std::string_view theirs,
                                                     char separator) {
  const std::vector<std::string> of_mine = parts_of(mine, separator);
  const std::vector<std::string> of_theirs = parts_of(theirs, separator);
  std::size_t i = 0;
  while (i < of_mine.size() && i < of_theirs.size() && of_mine[i] == of_theirs[i]) ++i;
  const auto part = [i](const std::vector<std::string>& parts) {
    return i < parts.size() ? parts[i] : std::string("none");
  };
  return {part(of_mine), part(of_theirs)};
}

}  // namespace

Header Header::decode(std::span<const std::byte, kBytes> bytes, std::size_t bytes_max) {
  std::array<std::uint32_t, 4> words{};
  for (std::size_t i = 0; i < kBytes; ++i)
    words[i / 4] |= std::to_integer<std::uint32_t>(bytes[i]) << (8 * (i % 4));
  COHORT_CHECK(
      words[0] == kMagic, ErrorCode::data_loss,
      "[collective.form] expected a message of a worker of a synchronous job, got bytes of "
      "another protocol");
  COHORT_CHECK(words[1] == kProtocolVersion, ErrorCode::failed_precondition,
               "[collective.form] expected version ", kProtocolVersion,
               " of the protocol between workers, got ", words[1],
               "; use the same Cohort for all workers");
  COHORT_CHECK(words[2] <= bytes_max, ErrorCode::data_loss,
               "[collective.form] expected a message of at most ", bytes_max, " bytes, got ",
               words[2]);
  return {words[2], words[3]};
}

void Header::check(std::span<const std::byte> body) const {
  COHORT_CHECK(crc32c(body) == checksum, ErrorCode::data_loss,
               "[collective.form] expected the bytes that were sent, got others (CRC-32C)");
}

PastGroup past_group_of(const Proposal& proposal) {
  PastGroup group{.number = proposal.number};
  for (const ProposedMember& member : proposal.members) {
    group.members.push_back(member.who);
    group.places.push_back({host_hash(member.host), member.process, member.addresses});
  }
  return group;
}

Bytes encode(const Request& request) {
  ByteWriter out;
  out.u8(static_cast<std::uint8_t>(request.kind));
  out.text(request.from.job);
  out.u8(static_cast<std::uint8_t>(request.from.backend));
  out.text(request.from.options);
  out.u64(request.from.tasks_hash);
  out.text(request.from.tasks);
  out.text(request.from.torch_version);
  write(out, request.from.self);
  out.zigzag(request.to);
  if (request.kind == RequestKind::join) write(out, request.join);
  if (request.kind == RequestKind::link) write(out, request.link);
  if (request.kind == RequestKind::left_out) out.u64(request.left_out_of);
  if (request.kind == RequestKind::differs) {
    out.zigzag(request.different);
    out.text(request.difference);
  }
  return with_header(out.bytes());
}

Request decode_request(std::span<const std::byte> body) {
  ByteReader in(body, "a message of a worker");
  Request request;
  const std::uint8_t kind = in.u8();
  if (kind < 1 || kind > 5) in.fail("a kind of request");
  request.kind = static_cast<RequestKind>(kind);
  request.from.job = in.text();
  request.from.backend = static_cast<GroupBackend>(in.u8());
  request.from.options = in.text();
  request.from.tasks_hash = in.u64();
  request.from.tasks = in.text();
  request.from.torch_version = in.text();
  request.from.self = read_member(in);
  request.to = static_cast<int>(in.zigzag());
  if (request.kind == RequestKind::join) request.join = read_join(in);
  if (request.kind == RequestKind::link) request.link = read_link(in);
  if (request.kind == RequestKind::left_out) request.left_out_of = in.u64();
  if (request.kind == RequestKind::differs) {
    request.different = static_cast<int>(in.zigzag());
    request.difference = in.text();
  }
  in.expect_end();
  return request;
}

Bytes encode(const Reply& reply) {
  ByteWriter out;
  out.u8(static_cast<std::uint8_t>(reply.kind));
  out.u64(reply.incarnation);
  out.u64(reply.number);
  out.u64(reply.last);
  out.u8(static_cast<std::uint8_t>(reply.code));
  out.text(reply.text);
  out.varint(reply.missing.size());
  for (const int task : reply.missing) out.zigzag(task);
  out.u64(reply.left_behind);
  out.u8(static_cast<std::uint8_t>(reply.obstacle));
  out.u8(reply.is_final ? 1 : 0);
  write(out, reply.proposal);
  return with_header(out.bytes());
}

Reply decode_reply(std::span<const std::byte> body) {
  ByteReader in(body, "an answer of a worker");
  Reply reply;
  const std::uint8_t kind = in.u8();
  if (kind < 1 || kind > 8) in.fail("a kind of reply");
  reply.kind = static_cast<ReplyKind>(kind);
  reply.incarnation = in.u64();
  reply.number = in.u64();
  reply.last = in.u64();
  const std::uint8_t code = in.u8();
  if (code < 1 || code > 16) in.fail("the code of an error");
  reply.code = static_cast<ErrorCode>(code);
  reply.text = in.text();
  reply.missing.resize(in.count());
  for (int& task : reply.missing) task = static_cast<int>(in.zigzag());
  reply.left_behind = in.u64();
  const std::uint8_t obstacle = in.u8();
  if (obstacle > 3) in.fail("an obstacle");
  reply.obstacle = static_cast<Obstacle>(obstacle);
  reply.is_final = read_flag(in);
  reply.proposal = read_proposal(in);
  in.expect_end();
  return reply;
}

std::optional<Error> disagreement(const Identity& own, const Identity& other) {
  const auto differ = [](const auto& expected, const auto& got, std::string_view remedy) {
    return Error(ErrorCode::failed_precondition, "[collective.form] expected " +
                                                     std::string(expected) + ", got " +
                                                     std::string(got) + "; " + std::string(remedy));
  };
  if (own.torch_version != other.torch_version) {
    return differ("LibTorch " + own.torch_version, other.torch_version,
                  "use the same LibTorch for all workers");
  }
  if (own.tasks_hash != other.tasks_hash) {
    const auto [mine, theirs] = first_difference(own.tasks, other.tasks, '\n');
    const bool is_known = mine != theirs;  // and not after the beginning of a long list
    return differ("the same list of workers in all processes" + (is_known ? ", as " + mine : ""),
                  is_known ? theirs : "another one",
                  "give all workers the same list in the same order, in TF_CONFIG for instance");
  }
  if (own.backend != other.backend) {
    return differ("a worker with " + name_of(own.backend), name_of(other.backend),
                  "give all workers the same backend");
  }
  if (own.options != other.options) {
    const auto [mine, theirs] = first_difference(own.options, other.options, ',');
    return differ("a worker with the options '" + mine + "'", "'" + theirs + "'",
                  "give all workers the same options");
  }
  // The name of this process's job is not for strangers.
  if (own.job != other.job) {
    return differ("a worker of the same job", "one of another job",
                  "give all workers the same cluster, in TF_CONFIG for instance, and the same job "
                  "id; if another job uses this address, choose other ports");
  }
  return std::nullopt;
}

bool is_mistake_of_one_job(const Identity& own, const Identity& other) {
  if (own.tasks_hash == other.tasks_hash) return true;
  const std::vector<std::string> mine = parts_of(own.tasks, '\n');
  const std::vector<std::string> theirs = parts_of(other.tasks, '\n');
  if (mine.size() == theirs.size()) return true;
  // The other process has come to the address of this one in any case.
  int num_shared = 0;
  for (const std::string& task : mine)
    num_shared += std::find(theirs.begin(), theirs.end(), task) != theirs.end() ? 1 : 0;
  return num_shared > 1;
}

}  // namespace cohort::collective::formation
