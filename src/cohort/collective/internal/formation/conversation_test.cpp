// SPDX-License-Identifier: Apache-2.0
#include "cohort/collective/internal/formation/conversation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <chrono>
#include <string>
#include <thread>

#include "cohort/testing/worker_processes.h"

namespace cohort::collective::formation {
namespace {

using State = Conversation::State;

// Answers the first question that comes with these bytes.
void answer_once(int listening, const Bytes& answer) {
  const FileDescriptor asking(::accept(listening, nullptr, nullptr));
  char question[4096];
  EXPECT_GT(::recv(asking.get(), question, sizeof question, 0), 0);
  EXPECT_EQ(::send(asking.get(), answer.data(), answer.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(answer.size()));
}

class ConversationWithAWorker : public ::testing::Test {
 protected:
  State state_after(const Bytes& answer) {
    std::thread worker([&] { answer_once(listening_.get(), answer); });
    conversation_.ask(encode(Request{.kind = RequestKind::probe}));
    const Deadline deadline = Deadline::after(std::chrono::seconds(20));
    Conversation* const all[] = {&conversation_};
    while (conversation_.state() == State::pending && !deadline.has_expired())
      advance_all(all, -1, deadline);
    worker.join();
    return conversation_.state();
  }

  const testing::BoundPort port_;
  const FileDescriptor listening_ = testing::silent_listener(port_.address());
  Conversation conversation_{port_.address()};
  const Bytes good_ = encode(Reply{.kind = ReplyKind::forming});
};

// Regression: a damaged answer ended the forming of the first group, as if another program had
// answered.
TEST_F(ConversationWithAWorker, IsLostWhenAnAnswerIsDamaged) {
  Bytes damaged = good_;
  damaged.back() ^= std::byte{1};
  EXPECT_EQ(state_after(damaged), State::lost);
  EXPECT_THAT(conversation_.problem(), ::testing::HasSubstr("CRC-32C"));
  EXPECT_EQ(state_after(good_), State::answered);
  EXPECT_EQ(conversation_.reply().kind, ReplyKind::forming);
  conversation_.give_up("the next question has a new connection");
  damaged = good_;
  damaged.front() ^= std::byte{1};
  EXPECT_EQ(state_after(damaged), State::lost) << "it is known to speak the protocol";
}

TEST_F(ConversationWithAWorker, IsRefusedByAnotherProgram) {
  Bytes other = good_;
  other.front() ^= std::byte{1};
  EXPECT_EQ(state_after(other), State::answered);
  EXPECT_EQ(conversation_.reply().kind, ReplyKind::refused);
}

}  // namespace
}  // namespace cohort::collective::formation
