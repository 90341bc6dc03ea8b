// SPDX-License-Identifier: Apache-2.0
#include "cohort/collective/internal/formation/message.h"

#include <cstring>
#include <string_view>
#include <utility>

#include "cohort/core/detail/crc32c.h"

namespace cohort::collective::formation {
namespace {

constexpr std::uint32_t kMagic = 0x50474843;  // "CHGP"
constexpr std::uint32_t kProtocolVersion = 1;

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

void write(ByteWriter& out, const Join& join) {
  out.u64(join.last.number);
  write(out, join.last.members);
  out.u64(join.number_max);
  write(out, join.missed);
  out.zigzag(join.remaining_ms);
  out.u64(join.accepted);
  out.u64(join.proposed_max);
  out.text(join.host);
  out.zigzag(join.process);
}

Join read_join(ByteReader& in) {
  Join join;
  join.last.number = in.u64();
  join.last.members = read_members(in);
  join.number_max = in.u64();
  join.missed = read_members(in);
  join.remaining_ms = in.zigzag();
  join.accepted = in.u64();
  join.proposed_max = in.u64();
  join.host = in.text();
  join.process = in.zigzag();
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
    member.is_new = in.u8() != 0;
  }
  return proposal;
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

Bytes encode(const Request& request) {
  ByteWriter out;
  out.u8(static_cast<std::uint8_t>(request.kind));
  out.text(request.from.job);
  out.text(request.from.options);
  out.u64(request.from.tasks_hash);
  out.text(request.from.torch_version);
  write(out, request.from.self);
  out.zigzag(request.to);
  if (request.kind == RequestKind::join) write(out, request.join);
  if (request.kind == RequestKind::link) write(out, request.link);
  return with_header(out.bytes());
}

Request decode_request(std::span<const std::byte> body) {
  ByteReader in(body, "a message of a worker");
  Request request;
  const std::uint8_t kind = in.u8();
  if (kind < 1 || kind > 3) in.fail("a kind of request");
  request.kind = static_cast<RequestKind>(kind);
  request.from.job = in.text();
  request.from.options = in.text();
  request.from.tasks_hash = in.u64();
  request.from.torch_version = in.text();
  request.from.self = read_member(in);
  request.to = static_cast<int>(in.zigzag());
  if (request.kind == RequestKind::join) request.join = read_join(in);
  if (request.kind == RequestKind::link) request.link = read_link(in);
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
  reply.proposal = read_proposal(in);
  in.expect_end();
  return reply;
}

std::optional<Error> disagreement(const Identity& asking, const Identity& asked) {
  const auto differ = [](std::string_view what, const auto& expected, const auto& got,
                         std::string_view remedy) {
    try {
      cohort::internal::throw_error(ErrorCode::failed_precondition, "[collective.form] expected ",
                                    what, " ", expected, ", got ", got, "; ", remedy);
    } catch (const Error& error) {
      return error;
    }
  };
  if (asking.job != asked.job) {
    // The name of this process's job is not for strangers.
    return differ("a worker of job", "'" + asking.job + "'", "one of another job",
                  "give all workers the same cluster, in TF_CONFIG for instance, and GroupBackend; "
                  "if another job uses this address, choose other ports");
  }
  if (asking.torch_version != asked.torch_version) {
    return differ("LibTorch", asking.torch_version, asked.torch_version,
                  "use the same LibTorch for all workers");
  }
  if (asking.tasks_hash != asked.tasks_hash) {
    return differ("a worker of the same cluster with the hash", asking.tasks_hash, asked.tasks_hash,
                  "give all workers the same list of workers, in TF_CONFIG for instance");
  }
  if (asking.options != asked.options) {
    return differ("a worker with the options", "'" + asking.options + "'",
                  "'" + asked.options + "'", "give all workers the same options");
  }
  return std::nullopt;
}

}  // namespace cohort::collective::formation
