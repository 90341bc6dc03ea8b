// SPDX-License-Identifier: Apache-2.0
#include "cohort/workers/strategy_workers.h"

#include <ATen/core/TensorBody.h>
#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "cohort/synchronous/workers/workers_fixture.h"

namespace cohort::internal {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

using Bodies = std::vector<std::function<void(StrategyWorkers&)>>;

// Calls each body on a worker of its own. Returns what each has thrown, as a text.
std::vector<std::string> errors_of(const Bodies& bodies) {
  const InProcessWorkers workers(static_cast<int>(bodies.size()));
  std::vector<std::string> errors(bodies.size());
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < bodies.size(); ++i) {
    threads.emplace_back([&, i] {
      StrategyWorkers own(workers.group(static_cast<int>(i)), std::chrono::minutes(1), 1,
                          std::make_shared<collective::WorkerCalls>());
      try {
        bodies[i](own);
      } catch (...) {
        errors[i] = cohort::testing::text_of(std::current_exception());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return errors;
}

void reduce(StrategyWorkers& workers, double value, double expected) {
  const at::Tensor tensor = at::full({2}, value);
  workers.all_reduce({.call = "reduce", .text = "a sum"}, {&tensor, 1});
  EXPECT_TRUE(tensor.equal(at::full({2}, expected)));
}

void say(StrategyWorkers& workers, const std::string& text) {
  workers.exchange({.call = "say"}, [&] { return StrategyWorkers::Message{text, {}}; });
}

TEST(StrategyWorkersTest, OfferTheCallsOfAGroup) {
  const auto body = [](StrategyWorkers& workers) {
    EXPECT_TRUE(workers.are_several());
    EXPECT_EQ(workers.count(), 2);
    reduce(workers, 1.0 + workers.own(), 3.0);
    say(workers, "the same");
  };
  EXPECT_EQ(errors_of({body, body}), (std::vector<std::string>{"", ""}));
}

TEST(StrategyWorkersTest, SayWhatWhichWorkerDid) {
  const std::vector<std::string> errors =
      errors_of({[](StrategyWorkers& workers) { reduce(workers, 1, 0); },
                 [](StrategyWorkers& workers) { say(workers, "something"); }});
  for (const std::string& error : errors)
    EXPECT_THAT(error, AllOf(HasSubstr("a sum on worker:0"), HasSubstr("something on worker:1")));
  const std::vector<std::string> texts =
      errors_of({[](StrategyWorkers& workers) { say(workers, "one\ntwo"); },
                 [](StrategyWorkers& workers) { say(workers, "one\nthree"); }});
  for (const std::string& error : texts)
    EXPECT_THAT(error, AllOf(HasSubstr("got two on worker:0"), HasSubstr("three on worker:1")));
}

TEST(StrategyWorkersTest, SayWhoHasMadeFewerRuns) {
  const std::vector<std::string> errors = errors_of({[](StrategyWorkers& workers) {
                                                       workers.begin_run();
                                                       workers.begin_run();
                                                       reduce(workers, 1, 0);
                                                     },
                                                     [](StrategyWorkers& workers) {
                                                       workers.begin_run();
                                                       say(workers, "something");
                                                     }});
  for (const std::string& error : errors)
    EXPECT_THAT(error, HasSubstr(": worker:1 has made one run() less than worker:0; make"));
}

TEST(StrategyWorkersTest, GoOnAfterOneHasToldItsFailure) {
  const std::vector<std::string> errors = errors_of({[](StrategyWorkers& workers) {
                                                       EXPECT_ANY_THROW(reduce(workers, 1, 0));
                                                       reduce(workers, 1, 2);
                                                       EXPECT_ANY_THROW(say(workers, ""));
                                                       reduce(workers, 1, 2);
                                                     },
                                                     [](StrategyWorkers& workers) {
                                                       for (int i = 0; i < 2; ++i) {
                                                         workers.begin_run();
                                                         try {
                                                           throw std::runtime_error("no data");
                                                         } catch (...) {
                                                           workers.tell_failure();
                                                         }
                                                         reduce(workers, 1, 2);
                                                       }
                                                     }});
  EXPECT_EQ(errors, (std::vector<std::string>{"", ""}));
}

// Regression: a frame that was damaged on the way to one worker was kept from the others, which
// waited for it until the timeout.
TEST(StrategyWorkersTest, TellWhatOthersCannotKnowOfAnotherGroup) {
  const std::vector<std::string> errors =
      errors_of({[](StrategyWorkers& workers) { reduce(workers, 1, 0); },
                 [](StrategyWorkers& workers) {
                   workers.begin_run();
                   try {
                     throw_error(ErrorCode::data_loss, "a damaged frame");
                   } catch (...) {
                     workers.note_failure(ErrorCode::data_loss);
                     workers.tell_failure();
                   }
                 }});
  EXPECT_THAT(errors[0], HasSubstr("a damaged frame"));
  EXPECT_EQ(errors[1], "");
}

TEST(StrategyWorkersTest, GoOnWithAnotherGroup) {
  const InProcessWorkers later(2);
  const auto body = [&](StrategyWorkers& workers) {
    reduce(workers, 1, 2);
    EXPECT_EQ(workers.group_number(), 0U);
    const std::uint64_t epoch = workers.epoch();
    workers.use(later.group(1 - workers.own()));
    EXPECT_EQ(workers.group_number(), 1U);
    EXPECT_NE(workers.epoch(), epoch);
    reduce(workers, 2, 4);
  };
  EXPECT_EQ(errors_of({body, body}), (std::vector<std::string>{"", ""}));
}

}  // namespace
}  // namespace cohort::internal
