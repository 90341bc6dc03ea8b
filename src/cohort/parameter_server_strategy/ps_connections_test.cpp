// SPDX-License-Identifier: Apache-2.0
// Calls that need a parameter server which has gone.
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <optional>
#include <thread>

#include "cohort/parameter_server_strategy/parameter_server_home.h"
#include "cohort/rpc/messages.h"
#include "cohort/strategy/parameter_server_strategy.h"
#include "cohort/testing/channel_fixture.h"
#include "cohort/testing/fake_task.h"
#include "cohort/testing/throws_error.h"
#include "cohort/testing/warnings.h"

namespace cohort {
namespace {

using ::testing::HasSubstr;
using testing::throws_error;

constexpr const char* kRemedy =
    "; the variables there may be lost: see that ps:0 runs, and start the program again";

// Nothing was logged for a minute, and the error did not say what to do.
TEST(LostServerTest, AReadSaysThatItWaitsAndThenWhatToDo) {
  testing::Warnings warnings;
  std::optional<testing::FakeTask> ps(std::in_place, "ps:0");
  testing::FakeTask worker("worker:0");
  ParameterServerStrategy strategy(
      testing::cluster_of({&*ps, &worker}),
      {.cluster = {.timeout = std::chrono::seconds(3), .job_id = testing::kFakeJob}});
  const Variable v = strategy.variable("v", at::ones({}));
  EXPECT_EQ(warnings.text(), "");
  ps.reset();
  const auto is_open = [&] {
    return strategy.home()->connection().servers()->last_channels().at(0)->is_open();
  };
  const Deadline deadline = testing::patience();
  while (is_open() && !deadline.has_expired()) std::this_thread::yield();
  EXPECT_THAT([&] { v.read(); }, throws_error(ErrorCode::unavailable, kRemedy));
  EXPECT_THAT(warnings.text(),
              HasSubstr("no connection to ps:0: a call that needs its variables waits for it, 3 s "
                        "at most (ClusterOptions::timeout)"));
}

TEST(LostServerTest, AReadThatLosesItsConnectionSaysWhatToDo) {
  testing::FakeTask ps("ps:0");
  testing::FakeTask worker("worker:0");
  ps.on_request = [&, answer = ps.on_request](const rpc::Frame& request) {
    if (static_cast<rpc::MessageType>(request.type) == rpc::MessageType::pull) ps.close_channels();
    return answer(request);
  };
  ParameterServerStrategy strategy(testing::cluster_of({&ps, &worker}),
                                   {.cluster = {.job_id = testing::kFakeJob}});
  const Variable v = strategy.variable("v", at::ones({}));
  EXPECT_THAT([&] { v.read(); }, throws_error(ErrorCode::unavailable, kRemedy));
}

}  // namespace
}  // namespace cohort
