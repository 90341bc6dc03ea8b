// SPDX-License-Identifier: Apache-2.0
#include "cohort/rpc/control_calls/checked_call.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cohort/core/error.h"
#include "cohort/rpc/control_calls/control_codec.h"
#include "cohort/testing/little_memory.h"
#include "cohort/testing/throws_error.h"

namespace cohort::rpc::internal {
namespace {

constexpr const char* kName = "RegisterFunction";

proto::Call call_of(std::uint64_t coordinator = 7) {
  Bytes constants(300);
  for (std::size_t i = 0; i < constants.size(); ++i) constants[i] = std::byte(i);
  return checked_call(kName, coordinator,
                      encoded(FunctionBody{.id = 3, .name = "step", .programs = {constants}}));
}

// Calls `see` for each message that arrives when one bit of `sent` is flipped, whichever it is.
template <class Message, class See>
void flip_each_bit(const Message& sent, const See& see) {
  const std::string bytes = sent.SerializeAsString();
  for (std::size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
    std::string flipped = bytes;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << bit % 8));
    Message arrived;
    if (arrived.ParseFromString(flipped)) see(arrived, bit);
  }
}

// Regression: a captured constant arrived with another value.
TEST(CheckedCall, AFlippedBitIsNoticedWhereverItIs) {
  const proto::Call sent = call_of();
  EXPECT_TRUE(is_intact(sent, kName));
  int seen = 0;
  flip_each_bit(sent, [&](const proto::Call& arrived, std::size_t bit) {
    EXPECT_FALSE(is_intact(arrived, kName)) << "bit " << bit;
    ++seen;
  });
  EXPECT_GT(seen, 2000);  // most of them are bits of the program
}

TEST(CheckedCall, AFlippedBitOfAnAnswerIsNoticedWhereverItIs) {
  const proto::Call call = call_of();
  const TaskHealth health{.closures_run = 12};
  const Error error(ErrorCode::data_loss, "bad", ErrorCause::peer_lost);
  for (const proto::Answer& sent : {checked_answer(call, ""), checked_answer(call, encoded(health)),
                                    checked_answer(call, error)}) {
    EXPECT_TRUE(is_intact(sent, call));
    flip_each_bit(sent, [&](const proto::Answer& arrived, std::size_t bit) {
      EXPECT_FALSE(is_intact(arrived, call)) << "bit " << bit;
    });
  }
}

// A flipped bit in the headers of HTTP/2 may name another method, or another of the calls that run.
TEST(CheckedCall, WhatBelongsToAnotherCallDoesNotFit) {
  const proto::Call call = call_of(7);
  EXPECT_FALSE(is_intact(call, "Release"));
  proto::Call other = call;
  other.set_coordinator(8);
  EXPECT_FALSE(is_intact(other, kName));
  EXPECT_FALSE(is_intact(checked_answer(call, ""), call_of(8)));
  EXPECT_FALSE(is_intact(proto::Answer(), proto::Call()));
}

TEST(CheckedCall, ABodyOfAnotherVersionIsRefused) {
  EXPECT_THAT([] { decoded<TaskHealth>("\x0f", "GetHealth"); },
              testing::throws_error(ErrorCode::invalid_argument, "run the same Cohort"));
}

TEST(CheckedCall, FieldsOfALaterVersionArePassedOver) {
  const TaskHealth health{.closures_run = 12, .connections_lost = 3};
  const auto back = decoded<TaskHealth>(encoded(health) + "more", "GetHealth");
  EXPECT_EQ(back.closures_run, 12U);
  EXPECT_EQ(back.connections_lost, 3U);
}

TEST(CheckedCall, ACodeOfALaterVersionIsUnknown) {
  TaskHealth health;
  health.last_error = TaskError{.code = static_cast<ErrorCode>(99),
                                .cause = static_cast<ErrorCause>(99),
                                .text = std::string(5000, 'x')};
  const auto back = decoded<TaskHealth>(encoded(health), "GetHealth");
  EXPECT_EQ(back.last_error.value().code, ErrorCode::unknown);
  EXPECT_EQ(back.last_error->cause, ErrorCause::none);
  EXPECT_EQ(back.last_error->text.size(), 4096U);
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // they need address space
// gRPC crashed the process while it received the call.
TEST(CheckedCall, OneThatDoesNotFitIntoTheAddressSpaceIsRefused) {
  EXPECT_NO_THROW(check_call_room(std::uint64_t{1} << 40)) << "nothing limits it";
  const testing::LittleMemory little(std::size_t{64} << 20);
  EXPECT_NO_THROW(check_call_room(8 << 20));
  EXPECT_THAT([] { check_call_room(64 << 20); },
              testing::throws_error(ErrorCode::resource_exhausted, "ulimit -v"));
}
#endif

}  // namespace
}  // namespace cohort::rpc::internal
