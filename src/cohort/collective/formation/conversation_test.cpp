// SPDX-License-Identifier: Apache-2.0
#include "cohort/collective/formation/conversation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <chrono>
#include <memory>
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
    one_->ask(encode(Request{.kind = RequestKind::probe}));
    const Deadline deadline = Deadline::after(std::chrono::seconds(20));
    Conversation* const all[] = {one_.get()};
    while (one_->state() == State::pending && !deadline.has_expired())
      advance_all(all, -1, deadline);
    worker.join();
    return one_->state();
  }

  const testing::BoundPort port_;
  const FileDescriptor listening_ = testing::silent_listener(port_.address());
  std::unique_ptr<Conversation> one_ = std::make_unique<Conversation>(port_.address());
  const Bytes good_ = encode(Reply{.kind = ReplyKind::forming});
};

// Regression: a damaged answer ended the forming of the first group, as if another program had
// answered.
TEST_F(ConversationWithAWorker, IsLostWhenAnAnswerIsDamaged) {
  Bytes damaged = good_;
  damaged.back() ^= std::byte{1};
  EXPECT_EQ(state_after(damaged), State::lost);
  EXPECT_THAT(one_->problem(), ::testing::HasSubstr("CRC-32C"));
  EXPECT_EQ(state_after(good_), State::answered);
  EXPECT_EQ(one_->reply().kind, ReplyKind::forming);
  one_->give_up("the next question has a new connection");
  damaged = good_;
  damaged.front() ^= std::byte{1};
  EXPECT_EQ(state_after(damaged), State::lost) << "it is known to speak the protocol";
}

TEST_F(ConversationWithAWorker, IsRefusedByAnotherProgram) {
  Bytes other = good_;
  other.front() ^= std::byte{1};
  EXPECT_EQ(state_after(other), State::lost);
  EXPECT_EQ(state_after(other), State::lost);
  EXPECT_EQ(state_after(other), State::answered);
  EXPECT_EQ(one_->reply().kind, ReplyKind::refused);
}

// Regression: a bit of a header that was flipped on its way, in the question or in the answer, was
// taken for another version, and ended a worker of a job that trained with exit code 64.
TEST_F(ConversationWithAWorker, IsLostWhenAHeaderIsDamaged) {
  for (const std::size_t i : {0U, 4U, 5U, 6U, 7U}) {
    Bytes damaged = good_;
    damaged[i] ^= std::byte{1};
    one_ = std::make_unique<Conversation>(port_.address());
    EXPECT_EQ(state_after(damaged), State::lost) << i;
    EXPECT_EQ(state_after(good_), State::answered) << i;
  }
  const Bytes of_question = encode(Reply{.kind = ReplyKind::refused,
                                         .code = ErrorCode::data_loss,
                                         .text = "expected version 2, got 258"});
  EXPECT_EQ(state_after(of_question), State::lost);
  EXPECT_EQ(state_after(good_), State::answered);
}

TEST_F(ConversationWithAWorker, TellsSilenceFromABrokenConnection) {
  one_->ask(encode(Request{.kind = RequestKind::probe}));
  one_->give_up("no answer in time");
  EXPECT_TRUE(one_->is_silent());
  EXPECT_EQ(state_after({}), State::lost);
  EXPECT_FALSE(one_->is_silent()) << "its process may have been killed";
}

// Regression: on a machine that stood still for a second, a worker took one that had been killed
// for one that was silent, which may train on, and did not go on without it.
TEST_F(ConversationWithAWorker, DoesNotCountTheTimeInWhichThisProcessStoodStill) {
  one_->ask(encode(Request{.kind = RequestKind::probe}));
  TimePoint now = one_->asked_at() + std::chrono::seconds(100);
  EXPECT_FALSE(one_->has_waited(std::chrono::seconds(1), now));
  int num_looks = 1;
  while (!one_->has_waited(std::chrono::seconds(1), now += std::chrono::milliseconds(100)))
    ++num_looks;
  EXPECT_EQ(num_looks, 10);
}

}  // namespace
}  // namespace cohort::collective::formation
