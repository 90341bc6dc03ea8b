// SPDX-License-Identifier: Apache-2.0
// Parameter servers that do not answer, though their connections are open.
#include "cohort/coordinator/workers/ps_silence.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "cohort/rpc/connection.h"
#include "cohort/testing/coordinator_fixture.h"
#include "cohort/testing/warnings.h"

namespace cohort {
namespace {

using coordinator::internal::PsSilence;
using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr auto kPatience = seconds(5);

// One server; its test says which seconds have passed.
class PsSilenceTest : public ::testing::Test {
 protected:
  rpc::Connection connect() const {
    return rpc::connect_task({.address = ps.address(),
                              .task = "ps:0",
                              .caller = rpc::identity_of_process("chief:0", testing::kFakeJob, 1),
                              .deadline = testing::patience()});
  }
  std::vector<std::string> look(seconds after) {
    return silence.look({link.data}, TimePoint() + after, "steps wait");
  }
  // Anything that the server sends is a sign of life.
  void exchange_bytes() const {
    link.data->call(rpc::to_frame(rpc::PushRequest()), testing::patience(), "pushing");
  }

  testing::FakeTask ps{"ps:0"};
  rpc::Connection link = connect();
  PsSilence silence{1, kPatience};
};

// Nothing was logged before an error after data_timeout, five minutes later.
TEST_F(PsSilenceTest, IsReportedOnceAndSoIsItsEnd) {
  ps.answers_pings = false;
  EXPECT_THAT(look(seconds(0)), IsEmpty());
  EXPECT_THAT(look(seconds(4)), IsEmpty());
  EXPECT_THAT(look(seconds(7)), ElementsAre(AllOf(HasSubstr("ps:0 (" + ps.address().substr(0, 10)),
                                                  HasSubstr("not answered for 7 s: steps wait"))));
  EXPECT_THAT(look(seconds(60)), IsEmpty());
  exchange_bytes();
  EXPECT_THAT(look(seconds(90)), ElementsAre(HasSubstr("answers again, after 90 s")));
  EXPECT_THAT(look(seconds(91)), IsEmpty());
}

TEST_F(PsSilenceTest, IsNotThatOfAServerThatAnswers) {
  const auto before = link.data->progress().received;
  EXPECT_THAT(look(seconds(0)), IsEmpty());
  const Deadline deadline = testing::patience();
  while (link.data->progress().received == before && !deadline.has_expired())
    std::this_thread::yield();
  EXPECT_THAT(look(seconds(60)), IsEmpty());
}

// Its loss is reported by the calls that need it.
TEST_F(PsSilenceTest, IsNotThatOfAClosedConnection) {
  EXPECT_THAT(look(seconds(0)), IsEmpty());
  link.data->close();
  EXPECT_THAT(look(seconds(60)), IsEmpty());
  link.data = nullptr;
  EXPECT_THAT(look(seconds(120)), IsEmpty());
}

TEST_F(PsSilenceTest, MayEndOverAnotherConnection) {
  ps.answers_pings = false;
  look(seconds(0));
  EXPECT_THAT(look(seconds(10)), ElementsAre(HasSubstr("not answered for 10 s")));
  link = connect();
  EXPECT_THAT(look(seconds(20)), IsEmpty());
  exchange_bytes();
  EXPECT_THAT(look(seconds(30)), ElementsAre(HasSubstr("answers again, after 30 s")));
}

class WatchedPs : public testing::CoordinatorFixture {};

TEST_F(WatchedPs, ThatDoesNotAnswerIsNamedInTheLogWithTheTimeoutThatEndsTheWait) {
  testing::Warnings warnings;
  ps.answers_pings = false;
  const ClusterCoordinator coordinator(strategy(), {.heartbeat = std::chrono::milliseconds(50)});
  EXPECT_TRUE(await([&] { return warnings.text().find("ps:0 (") != std::string::npos; }));
  EXPECT_THAT(warnings.text(),
              AllOf(HasSubstr("ps:0 ("), HasSubstr("has not answered for"),
                    HasSubstr("steps and reads that need its variables wait for it, 300 s at most "
                              "(ClusterOptions::data_timeout)")));
}

}  // namespace
}  // namespace cohort
