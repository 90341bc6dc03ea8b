// SPDX-License-Identifier: Apache-2.0
#include "cohort/rpc/requester.h"

#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <optional>
#include <thread>

#include "cohort/testing/channel_fixture.h"
#include "cohort/testing/error_of.h"
#include "cohort/testing/faulty_proxy.h"

namespace cohort::rpc {
namespace {

using cohort::testing::listen_on;
using cohort::testing::patience;
using cohort::testing::Promised;
using ::testing::HasSubstr;

// The action of the far end for a frame, by the frame's type.
constexpr std::uint16_t kEcho = 0;
constexpr std::uint16_t kFail = 1;
constexpr std::uint16_t kFailFromElsewhere = 2;
constexpr std::uint16_t kSilent = 3;
constexpr std::uint16_t kHangUp = 4;
constexpr std::uint16_t kGreet = 5;
constexpr std::uint16_t kFailBroken = 6;

// A server of the types above, and requesters to it.
class RequesterTest : public ::testing::TestWithParam<std::string> {
 protected:
  RequesterTest() {
    listener_ = listen_on(GetParam(), [this](std::shared_ptr<Channel> channel) {
      return Channel::Handlers{
          .on_frame = [this, channel](Frame frame) { serve(*channel, std::move(frame)); }};
    });
  }

  const Backend& backend() { return backend_of(GetParam()); }

  std::shared_ptr<Requester> connect(std::function<void(Frame)> on_one_way = {},
                                     std::function<void(const Error&)> on_closed = {}) {
    return Requester::connect(
        backend(), {.address = listener_->address(), .peer = "ps:0", .deadline = patience()},
        std::move(on_one_way), std::move(on_closed));
  }

  static Error error_of_call(Requester& requester, std::uint16_t type,
                             Deadline deadline = patience()) {
    return testing::error_of([&] { requester.call({.type = type}, deadline, "testing ps:0"); });
  }

  std::atomic<int> one_ways_{0};
  std::unique_ptr<Listener> listener_;

 private:
  void serve(Channel& channel, Frame frame) {
    const std::uint64_t id = frame.id;
    if (frame.role == Frame::Role::one_way) ++one_ways_;
    switch (frame.type) {
      case kEcho:
        if (frame.role != Frame::Role::request) return;
        frame.role = Frame::Role::response;
        return channel.send(std::move(frame));
      case kFail:
        return channel.send(error_frame(id, Error(ErrorCode::not_found, "no such variable")));
      case kFailFromElsewhere:
        return channel.send(
            error_frame(id, Error(ErrorCode::aborted, "lost").at("ps:7", 3).during("pulling")));
      case kFailBroken: {
        Frame broken = error_frame(id, Error(ErrorCode::not_found, "no such variable"));
        broken.metadata.resize(broken.metadata.size() / 2);
        return channel.send(std::move(broken));
      }
      case kHangUp:
        return channel.close();
      case kGreet:
        return channel.send({.type = 99});
      default:
        return;
    }
  }
};

TEST_P(RequesterTest, ACallReturnsItsResponse) {
  const auto requester = connect();
  const Frame frame =
      requester->call({.type = kEcho, .tensors = {at::full({3}, 4)}}, patience(), "echo");
  EXPECT_EQ(frame.role, Frame::Role::response);
  EXPECT_EQ(frame.tensors.at(0).sum().item<int>(), 12);
}

TEST_P(RequesterTest, AnErrorIsThrownWithThePeerAsOrigin) {
  const auto requester = connect();
  const Error error = error_of_call(*requester, kFail);
  EXPECT_EQ(error.code(), ErrorCode::not_found);
  EXPECT_EQ(error.message(), "no such variable");
  EXPECT_EQ(error.origin(), "ps:0");
  EXPECT_THAT(error.what(), HasSubstr("while testing ps:0"));
  EXPECT_TRUE(requester->is_open());
}

TEST_P(RequesterTest, AnErrorKeepsTheOriginItCameWith) {
  const auto requester = connect();
  const Error error = error_of_call(*requester, kFailFromElsewhere);
  EXPECT_EQ(error.origin(), "ps:7");
  EXPECT_EQ(error.incarnation(), 3U);
  EXPECT_THAT(error.context(), ::testing::ElementsAre("pulling", "testing ps:0"));
}

TEST_P(RequesterTest, AnExpiredCallNamesPeerAndOperationAndTheChannelStaysOpen) {
  const auto requester = connect();
  const Error error =
      error_of_call(*requester, kSilent, Deadline::after(std::chrono::milliseconds(30)));
  EXPECT_EQ(error.code(), ErrorCode::deadline_exceeded);
  EXPECT_EQ(error.origin(), "ps:0");
  EXPECT_THAT(error.what(), HasSubstr("ps:0 (" + listener_->address()));
  EXPECT_THAT(error.what(), ::testing::ContainsRegex(" within [0-9.e-]+ s, got none; see whether"));
  EXPECT_THAT(error.what(), HasSubstr("testing ps:0"));
  EXPECT_NO_THROW(requester->call({.type = kEcho}, patience(), "echo"));
}

TEST_P(RequesterTest, RequestsThatAreSentTogetherHaveAnAnswerEachOrNone) {
  const auto first = connect(), second = connect();
  std::vector<Requester::Request> requests;
  requests.push_back({first.get(), {.type = kEcho, .tensors = {at::full({}, 5)}}});
  requests.push_back({second.get(), {.type = kFail}});
  requests.push_back({second.get(), {.type = kSilent}});
  const auto answers =
      Requester::ask_all(std::move(requests), Deadline::after(std::chrono::seconds(1)));
  ASSERT_EQ(answers.size(), 3U);
  EXPECT_EQ(std::get<Frame>(answers[0].value()).tensors.at(0).item<int>(), 5);
  EXPECT_EQ(std::get<Error>(answers[1].value()).code(), ErrorCode::not_found);
  EXPECT_FALSE(answers[2].has_value());
}

TEST_P(RequesterTest, ASilentPeerKeepsNoSmallAnswerOfAnotherOne) {
  const auto silent = connect(), other = connect();
  std::vector<Requester::Request> requests;
  requests.push_back({silent.get(), {.type = kSilent}, /*has_small_answer=*/true});
  requests.push_back({other.get(), {.type = kFail}, /*has_small_answer=*/true});
  requests.push_back({silent.get(), {.type = kEcho}, /*has_small_answer=*/true});
  const auto answers =
      Requester::ask_all(std::move(requests), Deadline::after(std::chrono::seconds(1)));
  EXPECT_FALSE(answers[0].has_value());
  EXPECT_EQ(std::get<Error>(answers[1].value()).code(), ErrorCode::not_found);
  EXPECT_TRUE(std::holds_alternative<Frame>(answers[2].value()));
}

TEST_P(RequesterTest, ThreadsReceiveSmallAnswersOfSeveralPeers) {
  const auto first = connect(), second = connect();
  std::vector<std::future<int>> threads;
  for (int thread = 0; thread < 3; ++thread) {
    threads.push_back(std::async(std::launch::async, [&, thread] {
      int right = 0;
      for (int i = 0; i < 100; ++i) {
        std::vector<Requester::Request> requests;
        for (Requester* const to : {first.get(), second.get()})
          requests.push_back(
              {to, {.type = kEcho, .tensors = {at::full({}, 100 * thread + i)}}, true});
        for (const auto& answer : Requester::ask_all(std::move(requests), patience()))
          right += std::get<Frame>(answer.value()).tensors.at(0).item<int>() == 100 * thread + i;
      }
      return right;
    }));
  }
  for (auto& thread : threads) EXPECT_EQ(thread.get(), 200);
}

TEST_P(RequesterTest, RequestsErrorsAndOneWaysMix) {
  constexpr int kEach = 300;
  std::atomic<int> greetings{0};
  std::atomic<int> right{0};
  Promised<int> done;
  std::atomic<int> left{2 * kEach};
  const auto requester = connect([&](const Frame& frame) { greetings += frame.type == 99; });
  for (int i = 0; i < kEach; ++i) {
    requester->request({.type = kEcho, .tensors = {at::full({}, i)}}, [&, i](Answer answer) {
      const auto* frame = std::get_if<Frame>(&answer);
      right += frame != nullptr && frame->tensors.at(0).item<int>() == i;
      if (--left == 0) done.set(1);
    });
    requester->send_one_way({.type = i % 2 == 0 ? kEcho : kGreet});
    requester->request({.type = kFail}, [&](const Answer& answer) {
      right += std::holds_alternative<Error>(answer);
      if (--left == 0) done.set(1);
    });
  }
  done.wait();
  requester->call({.type = kEcho}, patience(), "echo");  // runs after the last greeting
  EXPECT_EQ(right, 2 * kEach);
  EXPECT_EQ(greetings, kEach / 2);
  EXPECT_EQ(one_ways_, kEach);
}

TEST_P(RequesterTest, CallsFromManyThreadsGetTheirOwnAnswers) {
  const auto requester = connect();
  std::atomic<int> wrong{0};
  std::vector<std::thread> callers;
  for (int thread = 0; thread < 4; ++thread) {
    callers.emplace_back([&, thread] {
      for (int i = 0; i < 200; ++i) {
        const int value = thread * 1000 + i;
        const Frame frame =
            requester->call({.type = kEcho, .tensors = {at::full({}, value)}}, patience(), "echo");
        wrong += frame.tensors.at(0).item<int>() != value;
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(wrong, 0);
}

// A thread that calls may receive in place of the channel's thread, which has the other handlers.
TEST_P(RequesterTest, CallsLeaveOtherFramesToTheChannelsThreadInTheirOrder) {
  std::atomic<int> greetings{0}, wrong{0}, answers{0};
  const auto is_handler_here = [caller = std::this_thread::get_id()] {
    return std::this_thread::get_id() == caller;
  };
  const auto requester = connect([&](const Frame&) {
    wrong += is_handler_here();
    ++greetings;
  });
  for (int i = 1; i <= 30; ++i) {
    requester->send_one_way({.type = kGreet});
    requester->request({.type = i % 2 == 0 ? kEcho : kFail}, [&, i](const Answer& answer) {
      wrong += is_handler_here() || std::holds_alternative<Error>(answer) == (i % 2 == 0);
      ++answers;
    });
    requester->call({.type = kEcho}, patience(), "echo");
    wrong += greetings != i || answers != i;  // they were sent before the call
    requester->call({.type = kEcho}, patience(), "echo");
  }
  EXPECT_EQ(wrong, 0);
}

TEST_P(RequesterTest, ARequestAfterACallIsAnsweredWithoutAnotherCall) {
  const auto requester = connect();
  for (int i = 0; i < 50; ++i) {
    requester->call({.type = kEcho}, patience(), "echo");
    Promised<int> done;
    requester->request({.type = kEcho}, [&](const Answer&) { done.set(1); });
    EXPECT_EQ(done.wait(), 1);
  }
}

TEST_P(RequesterTest, CallsOfSeveralThreadsAndRequestsMix) {
  const auto requester = connect();
  std::atomic<int> wrong{0}, answered{0};
  std::vector<std::thread> callers;
  for (int thread = 0; thread < 3; ++thread) {
    callers.emplace_back([&, thread] {
      for (int i = 0; i < 200; ++i) {
        const int value = thread * 1000 + i;
        requester->request({.type = kEcho, .tensors = {at::full({}, value)}},
                           [&, value](Answer got) {
                             wrong += std::get<Frame>(got).tensors.at(0).item<int>() != value;
                             ++answered;
                           });
        const Frame frame = requester->call({.type = kEcho, .tensors = {at::full({30000}, value)}},
                                            patience(), "echo");
        wrong += frame.tensors.at(0)[29999].item<int>() != value;
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  const Deadline end = patience();
  while (answered != 600 && !end.has_expired()) std::this_thread::yield();
  EXPECT_EQ(answered, 600);
  EXPECT_EQ(wrong, 0);
}

TEST_P(RequesterTest, ACallEndsWhenAnotherThreadGivesUp) {
  const auto requester = connect();
  requester->call({.type = kEcho}, patience(), "echo");
  std::thread other([&] { requester->give_up(Error(ErrorCode::deadline_exceeded, "too slow")); });
  const Error error = error_of_call(*requester, kSilent);
  other.join();
  EXPECT_EQ(error.code(), ErrorCode::deadline_exceeded);
  EXPECT_EQ(error.message(), "too slow");
}

TEST_P(RequesterTest, ALostPeerAnswersEveryRequestThenReportsTheEnd) {
  std::atomic<int> lost{0};
  Promised<int> lost_at_end;
  const auto requester = connect({}, [&](const Error&) { lost_at_end.set(lost); });
  for (int i = 0; i < 10; ++i) {
    requester->request({.type = kSilent}, [&](const Answer& answer) {
      lost += std::get<Error>(answer).cause() == ErrorCause::peer_lost;
    });
  }
  requester->send_one_way({.type = kHangUp});
  EXPECT_EQ(lost_at_end.wait(), 10);
  EXPECT_FALSE(requester->is_open());
}

TEST_P(RequesterTest, ACallInFlightEndsWhenThePeerIsLost) {
  const auto requester = connect();
  const Error error = error_of_call(*requester, kHangUp);
  EXPECT_EQ(error.code(), ErrorCode::unavailable);
  EXPECT_EQ(error.cause(), ErrorCause::peer_lost);
  EXPECT_EQ(error.origin(), "ps:0");
}

// Regression: the request was removed before its error was decoded, so nothing ever answered it.
TEST_P(RequesterTest, ABrokenErrorFrameAnswersItsRequestAndEndsTheChannel) {
  const auto requester = connect();
  const Error error = error_of_call(*requester, kFailBroken);
  EXPECT_EQ(error.code(), ErrorCode::data_loss);
  EXPECT_THAT(error.what(), HasSubstr("testing ps:0"));
  EXPECT_FALSE(requester->is_open());
}

TEST_P(RequesterTest, ClosingAnswersWithCancelled) {
  const auto requester = connect();
  Promised<int> code;
  requester->request({.type = kSilent},
                     [&](const Answer& answer) { code.set(int(std::get<Error>(answer).code())); });
  requester->close();
  EXPECT_EQ(code.wait(), int(ErrorCode::cancelled));
}

TEST_P(RequesterTest, ARequestAfterTheEndIsAnsweredOnTheCallersThread) {
  const auto requester = connect();
  requester->close();
  int answers = 0;
  requester->request({.type = kEcho}, [&](const Answer& answer) {
    ++answers;
    EXPECT_EQ(std::get<Error>(answer).code(), ErrorCode::cancelled);
  });
  EXPECT_EQ(answers, 1);
  EXPECT_THROW(requester->send_one_way({.type = kEcho}), Error);
}

// Regression: the error did not tell why the channel was closed.
TEST_P(RequesterTest, WhenItIsGivenUpEveryRequestIsToldWhy) {
  const auto requester = connect();
  Promised<std::string> told;
  requester->request({.type = kSilent},
                     [&](const Answer& answer) { told.set(std::get<Error>(answer).message()); });
  requester->give_up(Error(ErrorCode::deadline_exceeded, "too slow"));
  EXPECT_EQ(told.take(), "too slow");
  EXPECT_FALSE(requester->is_open());
  requester->request({.type = kEcho},
                     [&](const Answer& answer) { told.set(std::get<Error>(answer).message()); });
  EXPECT_EQ(told.take(), "too slow");
}

TEST_P(RequesterTest, ARefusedTensorIsTheAnswerAndTheChannelStaysOpen) {
  const auto requester = connect();
  try {
    requester->call({.type = kEcho, .tensors = {at::Tensor()}}, patience(), "echo");
    FAIL() << "answered";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
  }
  EXPECT_NO_THROW(requester->call({.type = kEcho}, patience(), "echo"));
}

TEST_P(RequesterTest, RequestsFromAnAnswerWork) {
  const auto requester = connect();
  Promised<int> done;
  std::function<void(int)> next = [&](int left) {
    requester->request({.type = kEcho},
                       [&, left](const Answer&) { left == 0 ? done.set(1) : next(left - 1); });
  };
  next(100);
  EXPECT_EQ(done.wait(), 1);
}

TEST_P(RequesterTest, ACallFromAHandlerIsRefusedInsteadOfWaitingForItself) {
  Promised<std::shared_ptr<Error>> refused;
  std::shared_ptr<Requester> requester = connect();
  requester->request({.type = kEcho}, [&](const Answer&) {
    refused.set(std::make_shared<Error>(error_of_call(*requester, kEcho)));
  });
  const auto error = refused.wait();
  EXPECT_EQ(error->code(), ErrorCode::failed_precondition);
  EXPECT_THAT(error->context(), ::testing::ElementsAre("testing ps:0"));
}

TEST_P(RequesterTest, AHandlerMayDropTheLastHandle) {
  auto held = std::make_shared<Promised<std::shared_ptr<Requester>>>();
  Promised<int> closed;
  held->set(connect({}, [&](const Error& reason) { closed.set(int(reason.code())); }));
  held->wait()->request({.type = kEcho}, [held](const Answer&) { held->set(nullptr); });
  EXPECT_EQ(closed.wait(), int(ErrorCode::cancelled));
}

TEST_P(RequesterTest, HandlersThatHoldTheRequesterLetGoAtItsEnd) {
  auto held = std::make_shared<std::shared_ptr<Requester>>();
  *held = connect([held](const Frame&) {}, [held](const Error&) {});
  const std::weak_ptr<Requester> watched = *held;
  const std::weak_ptr<std::shared_ptr<Requester>> watched_handlers = held;
  (*held)->close();
  held.reset();
  const Deadline end = patience();
  while (!watched.expired() && !end.has_expired()) std::this_thread::yield();
  EXPECT_TRUE(watched.expired());
}

TEST_P(RequesterTest, ManyThreadsAskWhileThePeerHangsUp) {
  for (int round = 0; round < 10; ++round) {
    const auto requester = connect();
    std::atomic<int> asked{0};
    std::atomic<int> answered{0};
    std::vector<std::thread> callers;
    for (int thread = 0; thread < 3; ++thread) {
      callers.emplace_back([&] {
        for (int i = 0; i < 500 && requester->is_open(); ++i) {
          ++asked;
          requester->request({.type = kEcho}, [&](const Answer&) { ++answered; });
        }
      });
    }
    requester->send_one_way({.type = kHangUp});
    for (std::thread& caller : callers) caller.join();
    const Deadline end = patience();
    while (answered != asked && !end.has_expired()) std::this_thread::yield();
    EXPECT_EQ(answered, asked);
  }
}

// Regression: it only heard "it closed the connection".
TEST(BrokenFrame, WhoSentItHearsWhyTheConnectionEnds) {
  const Backend& stream = backend_of("stream");
  const auto listener = cohort::testing::listen_on_stream([](std::shared_ptr<Channel> channel) {
    return Channel::Handlers{.on_frame = [channel](const Frame&) {}};
  });
  cohort::testing::FaultyProxy proxy;
  proxy.set_target(listener->address());
  Promised<std::optional<Error>> reason;
  const auto requester = Requester::connect(
      stream, {.address = proxy.address(), .peer = "ps:0", .deadline = patience()}, {},
      [&](const Error& error) { reason.set(error); });
  proxy.arm({.part = cohort::testing::Fault::Part::header, .random = 8 * 20});
  std::optional<Error> answer;
  try {
    requester->call({.type = kEcho}, patience(), "testing ps:0");
  } catch (const Error& error) {
    answer = error;
  }
  for (const std::optional<Error>& error : {answer, reason.wait()}) {
    ASSERT_TRUE(error);
    EXPECT_EQ(error->code(), ErrorCode::unavailable) << error->what();
    EXPECT_EQ(error->cause(), ErrorCause::peer_lost);
    EXPECT_EQ(error->origin(), "ps:0");
    EXPECT_THAT(error->message(),
                HasSubstr("it received a broken frame and closed the connection"));
  }
}

INSTANTIATE_TEST_SUITE_P(All, RequesterTest, ::testing::ValuesIn(backend_names()),
                         [](const auto& each) { return each.param; });

}  // namespace
}  // namespace cohort::rpc
