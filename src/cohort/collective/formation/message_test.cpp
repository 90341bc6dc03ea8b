// SPDX-License-Identifier: Apache-2.0
#include "cohort/collective/formation/message.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "cohort/core/error.h"
#include "cohort/testing/test_seed.h"
#include "cohort/testing/throws_error.h"

namespace cohort::collective::formation {
namespace {

using ::testing::HasSubstr;
using testing::throws_error;

Identity identity() {
  return {.job = "a job",
          .options = "1 replica",
          .tasks_hash = 17,
          .tasks = "worker:0 a:1\nworker:1 b:2\n",
          .torch_version = "1.13",
          .self = {2, 99}};
}

std::span<const std::byte, Header::kBytes> header_of(const Bytes& message) {
  return std::span(message).first<Header::kBytes>();
}

Bytes body_of(const Bytes& message) {
  const Header header = Header::decode(header_of(message), 4096);
  Bytes body(message.begin() + Header::kBytes, message.end());
  EXPECT_EQ(header.body_bytes, body.size());
  header.check(body);
  return body;
}

Request a_join() {
  return {.kind = RequestKind::join,
          .from = identity(),
          .to = 1,
          .join = {.last = {7, {{0, 5}, {2, 99}}, {{11, 12, {13}}, {14, 15, {16, 17}}}},
                   .number_max = 8,
                   .missed = {{0, 5}},
                   .remaining_ms = 1234,
                   .accepted = 9,
                   .pending = {9, {{2, 99}}, {{11, 12, {13}}}},
                   .proposed_max = 10,
                   .host = "here",
                   .process = 4711,
                   .addresses = {18},
                   .is_given_up = true}};
}

TEST(FormationMessage, RequestsArriveAsTheyWereSent) {
  const Request join = decode_request(body_of(encode(a_join())));
  EXPECT_EQ(join.from.job, "a job");
  EXPECT_EQ(join.from.tasks_hash, 17u);
  EXPECT_EQ(join.from.torch_version, "1.13");
  EXPECT_EQ(join.from.self, (Member{2, 99}));
  EXPECT_EQ(join.to, 1);
  EXPECT_EQ(join.join.last.number, 7u);
  EXPECT_EQ(join.join.last.members, (std::vector<Member>{{0, 5}, {2, 99}}));
  EXPECT_EQ(join.join.number_max, 8u);
  EXPECT_EQ(join.join.missed, (std::vector<Member>{{0, 5}}));
  EXPECT_EQ(join.join.remaining_ms, 1234);
  EXPECT_EQ(join.join.accepted, 9u);
  EXPECT_EQ(join.join.proposed_max, 10u);
  EXPECT_EQ(join.join.host, "here");
  EXPECT_EQ(join.join.process, 4711);
  EXPECT_EQ(join.join.last.places.at(1).process, 15);
  EXPECT_EQ(join.join.last.places.at(1).addresses, (std::vector<std::uint64_t>{16, 17}));
  EXPECT_EQ(join.join.pending.number, 9u);
  EXPECT_EQ(join.join.pending.places.at(0).host, 11u);
  EXPECT_EQ(join.join.addresses, std::vector<std::uint64_t>{18});
  EXPECT_TRUE(join.join.is_given_up);
  const LinkHello hello{3, {1, 0, 4}, 1, 2};
  const Request link{.kind = RequestKind::link, .from = identity(), .link = hello};
  EXPECT_EQ(decode_request(body_of(encode(link))).link, hello);
}

TEST(FormationMessage, RepliesArriveAsTheyWereSent) {
  const Reply sent{
      .kind = ReplyKind::prepare,
      .incarnation = 5,
      .number = 6,
      .last = 3,
      .code = ErrorCode::aborted,
      .text = "why",
      .lack = {.missing = {1, 3},
               .left_behind = 4,
               .obstacle = Obstacle::minority,
               .is_final = true},
      .proposal = {7, 2, {{{0, 5}, "here", 12, {19}, true}, {{1, 6}, "there", 13, {}, false}}}};
  const Reply reply = decode_reply(body_of(encode(sent)));
  EXPECT_EQ(reply.kind, sent.kind);
  EXPECT_EQ(reply.incarnation, 5u);
  EXPECT_EQ(reply.number, 6u);
  EXPECT_EQ(reply.last, 3u);
  EXPECT_EQ(reply.code, ErrorCode::aborted);
  EXPECT_EQ(reply.text, "why");
  EXPECT_EQ(reply.lack.missing, sent.lack.missing);
  EXPECT_EQ(reply.lack.left_behind, 4u);
  EXPECT_EQ(reply.lack.obstacle, Obstacle::minority);
  EXPECT_TRUE(reply.lack.is_final);
  EXPECT_EQ(reply.proposal.number, 7u);
  EXPECT_EQ(reply.proposal.last, 2u);
  ASSERT_EQ(reply.proposal.members.size(), 2u);
  EXPECT_EQ(reply.proposal.members[1].who, (Member{1, 6}));
  EXPECT_EQ(reply.proposal.members[1].host, "there");
  EXPECT_EQ(reply.proposal.members[1].process, 13);
  EXPECT_TRUE(reply.proposal.members[0].is_new);
  EXPECT_EQ(reply.proposal.members[0].addresses, std::vector<std::uint64_t>{19});
}

TEST(FormationMessage, BrokenBytesAreRefused) {
  Bytes message = encode(a_join());
  message.back() ^= std::byte{1};
  EXPECT_THAT([&] { body_of(message); }, throws_error(ErrorCode::data_loss, "CRC-32C"));
  message[0] ^= std::byte{1};
  EXPECT_THAT([&] { body_of(message); }, throws_error(ErrorCode::data_loss, "another protocol"));
  message[0] ^= std::byte{1};
  message[4] ^= std::byte{2};
  EXPECT_THAT([&] { body_of(message); },
              throws_error(ErrorCode::failed_precondition, "expected version 4"));
  message[4] ^= std::byte{2};
  EXPECT_THAT([&] { Header::decode(header_of(message), 10); },
              throws_error(ErrorCode::data_loss, "at most 10 bytes"));
}

TEST(FormationMessage, RandomBodiesAreReadOrRefused) {
  const testing::TestSeed seed;
  std::mt19937 random(seed.value());
  const Bytes sent = body_of(encode(a_join()));
  for (int i = 0; i < 20'000; ++i) {
    Bytes body = sent;
    for (auto flips = 1 + random() % 3; flips > 0; --flips)
      body[random() % body.size()] ^= static_cast<std::byte>(1u << (random() % 8));
    body.resize(random() % 2 == 0 ? body.size() : random() % body.size());
    for (const auto decode : {+[](const Bytes& bytes) { decode_request(bytes); },
                              +[](const Bytes& bytes) { decode_reply(bytes); }}) {
      try {
        decode(body);
      } catch (const Error& error) {
        ASSERT_EQ(error.code(), ErrorCode::data_loss) << error.what();
      }
    }
  }
}

TEST(FormationMessage, DifferencesAreNamed) {
  EXPECT_FALSE(disagreement(identity(), identity()));
  Identity other = identity();
  other.self = {1, 7};
  EXPECT_FALSE(disagreement(identity(), other));
  other.torch_version = "2.15";
  EXPECT_THAT(disagreement(identity(), other)->message(), HasSubstr("LibTorch 1.13, got 2.15"));
  other = identity();
  other.job = "b job";
  EXPECT_THAT(disagreement(identity(), other)->message(),
              HasSubstr("of the same job, got one of another"));
  other = identity();
  other.options = "2 replicas";
  EXPECT_THAT(disagreement(identity(), other)->message(),
              HasSubstr("a worker with the options '1 replica', got '2 replicas'; give all"));
  other = identity();
  other.tasks_hash = 18;
  other.tasks = "worker:0 a:1\nworker:1 c:2\n";
  EXPECT_THAT(disagreement(identity(), other)->message(),
              HasSubstr("list of workers in all processes, as worker:1 b:2, got worker:1 c:2;"));
  other = identity();
  other.backend = GroupBackend::tcp;
  EXPECT_THAT(disagreement(identity(), other)->message(),
              HasSubstr("GroupBackend::automatic, got GroupBackend::tcp; give all"));
}

// A process of another job must not end the forming of this one.
TEST(FormationMessage, AnotherJobIsToldFromAMistake) {
  Identity other = identity();
  other.options = "2 replicas";
  EXPECT_TRUE(is_mistake_of_one_job(identity(), other));
  other.tasks_hash = 18;
  other.tasks = "worker:0 a:1\nworker:1 c:2\n";
  EXPECT_TRUE(is_mistake_of_one_job(identity(), other));
  other.tasks = "worker:0 a:1\nworker:1 b:2\nworker:2 c:3\n";
  EXPECT_TRUE(is_mistake_of_one_job(identity(), other));
  other.tasks = "worker:0 a:1\nworker:1 c:2\nworker:2 d:3\n";
  EXPECT_FALSE(is_mistake_of_one_job(identity(), other));
}

}  // namespace
}  // namespace cohort::collective::formation
