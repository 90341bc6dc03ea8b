// SPDX-License-Identifier: Apache-2.0
#include "cohort/net/name_lookup.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <thread>
#include <utility>

#include "cohort/testing/throws_error.h"

namespace cohort::net {
namespace {

constexpr auto kPatience = std::chrono::seconds(60);

Deadline now() { return Deadline::after(Duration::zero()); }

TEST(NameLookup, ANumberNeedsNoLookup) {
  const auto found = look_up({"127.0.0.1", "80"}, false, now(), [](auto...) {
    ADD_FAILURE() << "looked up";
    return EAI_FAIL;
  });
  ASSERT_TRUE(found && found->list);
  EXPECT_EQ(found->list->ai_family, AF_INET);
}

TEST(NameLookup, ANameHasItsAddresses) {
  const auto found = look_up({"localhost", "80"}, false, Deadline::after(kPatience));
  ASSERT_TRUE(found);
  EXPECT_TRUE(found->list) << found->problem;
}

TEST(NameLookup, SaysWhyThereAreNone) {
  const auto found = look_up({"unknown.test", "80"}, false, Deadline::after(kPatience),
                             [](auto...) { return EAI_NONAME; });
  ASSERT_TRUE(found);
  EXPECT_FALSE(found->list);
  EXPECT_EQ(found->problem, gai_strerror(EAI_NONAME));
}

// Regression: a name server that did not answer for a moment counted as a wrong name, which ends a
// task for good.
TEST(NameLookup, OfAnOwnNameThatNoServerAnswersIsUnavailableAndOfAWrongOneInvalid) {
  using cohort::testing::throws_error;
  const auto look_up_as = [](int answer) {
    look_up_own({"own" + std::to_string(-answer) + ".test", "80"}, Deadline::after(kPatience),
                [answer](auto...) { return answer; });
  };
  EXPECT_THAT([&] { look_up_as(EAI_AGAIN); },
              throws_error(ErrorCode::unavailable, gai_strerror(EAI_AGAIN)));
  EXPECT_THAT([&] { look_up_as(EAI_NONAME); },
              throws_error(ErrorCode::invalid_argument, gai_strerror(EAI_NONAME)));
}

// Regression: a task that was told to end waited for the name servers.
TEST(NameLookup, OfAnOwnNameEndsWhenTheTaskIsToEnd) {
  using cohort::testing::throws_error;
  std::promise<void> answer;
  const GetAddresses silent = [answered = answer.get_future().share()](auto...) {
    answered.wait();
    return EAI_NONAME;
  };
  int asked = 0;
  EXPECT_THAT(
      [&] {
        look_up_own({"ended.test", "80"}, Deadline::after(kPatience), silent,
                    [&] { return ++asked == 2; });
      },
      throws_error(ErrorCode::cancelled, "the address of host 'ended.test'"));
  EXPECT_EQ(asked, 2);
  EXPECT_THAT(
      [&] {
        look_up_own({"ended.test", "80"}, now(), silent, [] { return false; });
      },
      throws_error(ErrorCode::deadline_exceeded, "the address of host 'ended.test'"));
  answer.set_value();
}

TEST(NameLookup, EndsWhereItIsGivenUp) {
  std::promise<void> answer;
  const auto lookup = start_look_up({"given-up.test", "80"}, false,
                                    [answered = answer.get_future().share()](auto...) {
                                      answered.wait();
                                      return EAI_NONAME;
                                    });
  std::atomic<bool> is_given_up{false};
  std::promise<void> is_asked;
  std::thread owner([&] {
    is_asked.get_future().wait();
    is_given_up = true;
    lookup->wake();
  });
  bool is_first = true;
  const auto found = lookup->wait(Deadline::after(kPatience), [&] {
    if (std::exchange(is_first, false)) is_asked.set_value();
    return is_given_up.load();
  });
  EXPECT_FALSE(found);
  answer.set_value();
  owner.join();
}

// Regression: a connection attempt waited for the name servers beyond its deadline, and each retry
// started another lookup.
TEST(NameLookup, EndsAtTheDeadlineAndOneThreadAsksForAll) {
  std::promise<void> answer;
  const std::shared_future<void> is_answered = answer.get_future().share();
  std::atomic<int> asked{0};
  const GetAddresses silent = [&](auto...) {
    ++asked;
    is_answered.wait();
    return EAI_NONAME;
  };
  const HostPort where{"silent.test", "80"};
  EXPECT_FALSE(look_up(where, false, now(), silent));
  EXPECT_FALSE(look_up(where, false, now(), silent));
  answer.set_value();
  EXPECT_TRUE(look_up(where, false, Deadline::after(kPatience), silent));
  EXPECT_LE(asked, 2) << "the first two are one; the last one may have come after its end";
}

}  // namespace
}  // namespace cohort::net
