// SPDX-License-Identifier: Apache-2.0
#include "cohort/server/internal/job.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cohort/data/dataset.h"
#include "cohort/rpc/detail/connection.h"
#include "cohort/rpc/detail/messages.h"
#include "cohort/testing/throws_error.h"
#include "cohort/testing/without_threads.h"

namespace cohort::server {
namespace {

// A job whose coordinator greets over several channels, one after the other.
class JobIterators : public ::testing::Test {
 protected:
  using Sender = std::shared_ptr<CompletionSender>;

  Sender greet(const std::string& task) {
    auto sender = std::make_shared<CompletionSender>(std::weak_ptr<rpc::Channel>());
    job_.greeted(task, nullptr, sender);
    return sender;
  }
  void make() { job_.create_iterator({.id = 1, .dataset = Dataset::range(9).serialize()}); }
  bool is_there() {
    try {
      job_.handle(rpc::to_frame(rpc::PeekRequest{.resource = 1}), nullptr, nullptr);
      return true;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::not_found) << error.what();
      return false;
    }
  }

  Job job_{{.self = rpc::identity_of_process("worker:0", "job", 1), .coordinator = "chief:0"}};
};

// Those that were made before the first greeting stayed, with their buffers.
TEST_F(JobIterators, OfBeforeAGreetingGoWithIt) {
  make();
  greet("ps:0");
  EXPECT_TRUE(is_there()) << "another task's greeting";
  greet("chief:0");
  EXPECT_FALSE(is_there());
}

// The old channel may end after the new greeting.
TEST_F(JobIterators, GoWithTheirOwnChannelAndNotWithAnOlderOne) {
  const Sender old = greet("chief:0");
  const Sender newer = greet("chief:0");
  make();
  job_.hang_up(old);
  EXPECT_TRUE(is_there());
  job_.hang_up(newer);
  EXPECT_FALSE(is_there());
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
// The coordinator only read "Resource temporarily unavailable".
TEST(JobThread, ThatCannotStartIsNamed) {
  const testing::WithoutThreads none;
  EXPECT_THAT(
      [] {
        Job({.self = rpc::identity_of_process("worker:0", "job", 1), .coordinator = "chief:0"});
      },
      testing::throws_error(ErrorCode::resource_exhausted,
                            "cannot start a thread to run closures"));
}
#endif

}  // namespace
}  // namespace cohort::server
