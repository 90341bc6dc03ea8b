// SPDX-License-Identifier: Apache-2.0
#include "cohort/collective/formation/message.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <string_view>
#include <utility>

#include "cohort/collective/formation/on_backend.h"
#include "cohort/core/crc32c.h"
#include "cohort/core/fields.h"
#include "cohort/core/random.h"
#include "cohort/net/host_proof.h"

namespace cohort::collective {

struct NamedNumber {
  std::string name = {};
  double value = 0;
};

template <class Codec>
void fields(Codec& codec, NamedNumber& number) {
  codec(number.name, number.value);
}

template <class Codec>
void fields(Codec& codec, MemberStatus& status) {
  TaskProgress& progress = status.progress;
  std::vector<NamedNumber> values;
  if constexpr (!Codec::kReads) {
    for (const auto& [name, value] : progress.values) values.push_back({name, value});
  }
  codec(status.task, Fixed{status.incarnation}, status.uptime, Fixed{status.group}, status.workers,
        status.is_forming, progress.steps, progress.steps_per_second, progress.since_last_step,
        progress.program_step, progress.program_steps, values);
  if constexpr (Codec::kReads) {
    for (NamedNumber& each : values) progress.values.emplace(std::move(each.name), each.value);
  }
}

}  // namespace cohort::collective

namespace cohort::collective::formation {

template <class Codec>
void fields(Codec& codec, Member& member) {
  codec(member.task, Fixed{member.incarnation});
}

template <class Codec>
void fields(Codec& codec, Place& place) {
  codec(Fixed{place.host}, place.process, FixedList{place.addresses});
}

template <class Codec>
void fields(Codec& codec, PastGroup& group) {
  codec(Fixed{group.number}, group.members, group.places);
}

// A backend of another version is read, too, for disagreement() to name.
template <class Codec>
void fields(Codec& codec, Identity& identity) {
  codec(identity.job, Choice(identity.backend, static_cast<GroupBackend>(0xff), "a backend"),
        identity.options, Fixed{identity.tasks_hash}, identity.tasks, identity.torch_version,
        identity.self);
}

template <class Codec>
void fields(Codec& codec, Join& join) {
  codec(join.last, Fixed{join.number_max}, join.missed, join.remaining_ms, Fixed{join.accepted},
        join.pending, Fixed{join.proposed_max}, join.host, join.process, FixedList{join.addresses},
        join.is_given_up);
}

template <class Codec>
void fields(Codec& codec, LinkHello& link) {
  codec(Fixed{link.group}, link.path, link.lane, link.lanes);
}

template <class Codec>
void fields(Codec& codec, ProposedMember& member) {
  codec(member.who, member.host, member.process, FixedList{member.addresses}, member.is_new);
}

template <class Codec>
void fields(Codec& codec, Proposal& proposal) {
  codec(Fixed{proposal.number}, Fixed{proposal.last}, proposal.members);
}

template <class Codec>
void fields(Codec& codec, Request& request) {
  codec(Choice(request.kind, RequestKind::status, "a kind of request", RequestKind::probe),
        request.from, request.to);
  if (request.kind == RequestKind::join) codec(request.join);
  if (request.kind == RequestKind::link) codec(request.link);
  if (request.kind == RequestKind::left_out) codec(Fixed{request.left_out_of});
  if (request.kind == RequestKind::differs) codec(request.different, request.difference);
}

template <class Codec>
void fields(Codec& codec, Lack& lack) {
  codec(lack.missing, Fixed{lack.left_behind},
        Choice(lack.obstacle, Obstacle::given_up, "an obstacle"), lack.is_final);
}

template <class Codec>
void fields(Codec& codec, Reply& reply) {
  codec(
      Choice(reply.kind, ReplyKind::status, "a kind of reply", ReplyKind::refused),
      Fixed{reply.incarnation}, Fixed{reply.number}, Fixed{reply.last},
      Choice(reply.code, ErrorCode::unauthenticated, "the code of an error", ErrorCode::cancelled),
      reply.text, reply.lack, reply.proposal);
  if (reply.kind == ReplyKind::status) codec(reply.status);
}

namespace {

constexpr std::uint32_t kMagic = 0x50474843;  // "CHGP"
constexpr std::uint32_t kProtocolVersion = 4;

Bytes with_header(const Bytes& body) {
  const std::array<std::uint32_t, 4> words{kMagic, kProtocolVersion,
                                           static_cast<std::uint32_t>(body.size()), crc32c(body)};
  Bytes message(Header::kBytes + body.size());
  for (std::size_t i = 0; i < Header::kBytes; ++i)
    message[i] = static_cast<std::byte>(words[i / 4] >> (8 * (i % 4)));
  std::memcpy(message.data() + Header::kBytes, body.data(), body.size());
  return message;
}

std::uint64_t host_hash(std::string_view host) { return mix_seed(0, host); }

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

std::string own_host() {
  return net::boot_id() + "/" + net::namespace_id("pid") + "/" + net::namespace_id("user") + "/" +
         std::to_string(::geteuid());
}

bool has_ended(const Place& place) {
  static const std::uint64_t here = host_hash(own_host());
  return place.host == here && place.process > 0 &&
         ::kill(static_cast<pid_t>(place.process), 0) != 0 && errno == ESRCH;
}

PastGroup past_group_of(const Proposal& proposal) {
  PastGroup group{.number = proposal.number};
  for (const ProposedMember& member : proposal.members) {
    group.members.push_back(member.who);
    group.places.push_back({host_hash(member.host), member.process, member.addresses});
  }
  return group;
}

Bytes encode(const Request& request) { return with_header(encode_fields(request)); }

Request decode_request(std::span<const std::byte> body) {
  return decode_fields<Request>(body, "a message of a worker");
}

Bytes encode(const Reply& reply) { return with_header(encode_fields(reply)); }

Reply decode_reply(std::span<const std::byte> body) {
  return decode_fields<Reply>(body, "an answer of a worker");
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
