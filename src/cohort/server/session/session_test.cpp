// SPDX-License-Identifier: Apache-2.0
#include "cohort/server/session/session.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cohort/data/dataset.h"
#include "cohort/function/registry.h"
#include "cohort/rpc/connection.h"
#include "cohort/rpc/messages.h"
#include "cohort/testing/throws_error.h"
#include "cohort/testing/without_threads.h"

namespace cohort::server {
namespace {

const bool kHasFunction = [] {
  function::register_function("session_test.f",
                              [](std::vector<at::Tensor> inputs) { return inputs; });
  return true;
}();

// A session whose coordinator greets over several channels, one after the other.
class SessionIterators : public ::testing::Test {
 protected:
  using Sender = std::shared_ptr<CompletionSender>;

  Sender greet(const std::string& task) {
    auto sender = std::make_shared<CompletionSender>(std::weak_ptr<rpc::Channel>());
    session_.greeted(task, nullptr, sender);
    return sender;
  }
  void make() { session_.create_iterator({.id = 1, .dataset = Dataset::range(9).serialize()}); }
  bool is_there() {
    try {
      session_.handle(rpc::to_frame(rpc::PeekRequest{.resource = 1}), nullptr, nullptr);
      return true;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::not_found) << error.what();
      return false;
    }
  }

  Session session_{
      {.self = rpc::identity_of_process("worker:0", "job", 1), .coordinator = "chief:0"}};
};

// Regression: iterators that were created before the first greeting stayed, with their buffers.
TEST_F(SessionIterators, OfBeforeAGreetingGoWithIt) {
  make();
  greet("ps:0");
  EXPECT_TRUE(is_there()) << "another task's greeting";
  greet("chief:0");
  EXPECT_FALSE(is_there());
}

// The end of the old channel may come after the new greeting.
TEST_F(SessionIterators, GoWithTheirOwnChannelAndNotWithAnOlderOne) {
  const Sender old = greet("chief:0");
  const Sender newer = greet("chief:0");
  make();
  session_.hang_up(old);
  EXPECT_TRUE(is_there());
  session_.hang_up(newer);
  EXPECT_FALSE(is_there());
}

// Regression: the variables of a strategy that had ended stayed until the next one came.
TEST_F(SessionIterators, VariablesAndFunctionsGoWithAFarewellOfTheCoordinator) {
  const Sender old = greet("chief:0");
  const Sender newer = greet("chief:0");
  session_.create_variables({{1, "v", {at::kFloat, {{2}}}, true}});
  session_.register_function({.id = 1, .name = "f", .registered_name = "session_test.f"});
  const Sender other = greet("ps:0");
  session_.take_farewell(other);
  session_.take_farewell(old);
  EXPECT_EQ(session_.health().variables, 1U) << "the coordinator is still there";
  EXPECT_EQ(session_.health().variable_bytes, 8U);
  session_.take_farewell(newer);
  EXPECT_EQ(session_.health().variables, 0U);
  EXPECT_EQ(session_.health().variable_bytes, 0U);
  session_.create_variables({{2, "v", {at::kFloat, {{2}}}, true}});
  session_.replace();
  EXPECT_EQ(session_.health().variables, 0U);
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
// Regression: the coordinator only got "Resource temporarily unavailable".
TEST(JobThread, ThatCannotStartIsNamed) {
  const testing::WithoutThreads none;
  EXPECT_THAT(
      [] {
        Session({.self = rpc::identity_of_process("worker:0", "job", 1), .coordinator = "chief:0"});
      },
      testing::throws_error(ErrorCode::resource_exhausted,
                            "cannot start a thread to run closures"));
}
#endif

}  // namespace
}  // namespace cohort::server
