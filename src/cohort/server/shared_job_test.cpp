// SPDX-License-Identifier: Apache-2.0
// Jobs that tasks join: what their chief has made stays, and they learn its number from the server.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "cohort/cluster/cluster_resolver.h"
#include "cohort/rpc/connection.h"
#include "cohort/rpc/messages.h"
#include "cohort/rpc/reserved_port.h"
#include "cohort/server/server.h"
#include "cohort/server/session/session.h"
#include "cohort/testing/channel_fixture.h"
#include "cohort/testing/throws_error.h"

namespace cohort {
namespace {

using testing::patience;
using testing::throws_error;

constexpr const char* kSharedJobId = "shared_job_test";

class SharedJob : public ::testing::Test {
 protected:
  static std::string free_address() {
    static std::vector<rpc::ReservedPort> ports;
    return "127.0.0.1:" + std::to_string(ports.emplace_back().number());
  }
  rpc::Connection connect(const std::string& task, std::uint64_t start, std::uint64_t job,
                          bool begins = false) {
    return rpc::connect_task({.address = server_.address(),
                              .task = "ps:0",
                              .caller = rpc::identity_of_process(task, kSharedJobId, start),
                              .coordinator_incarnation = job,
                              .start_order = begins ? rpc::start_order_now() : 0,
                              .is_shared = begins,
                              .deadline = patience()});
  }
  rpc::Connection begin(std::uint64_t job) { return connect("chief:0", job, job, true); }
  std::uint64_t job_there() {
    return rpc::control_client(server_.address(), "ps:0")
        ->handshake({.caller = rpc::identity_of_process("worker:0", kSharedJobId, 50),
                     .expected_task = "ps:0"},
                    patience())
        .shared_job;
  }
  static rpc::FindReply find(const rpc::Connection& connection, std::vector<std::string> names) {
    return rpc::message_of<rpc::FindReply>(connection.data->call(
        rpc::to_frame(rpc::FindRequest{std::move(names)}), patience(), "finding"));
  }
  static void announce(const rpc::Connection& connection, const rpc::AnnounceRequest& request) {
    connection.data->call(rpc::to_frame(request), patience(), "announcing");
  }

  Server server_{
      SimpleResolver(ClusterSpec({{"worker", {"127.0.0.1:1"}}, {"ps", {free_address()}}}),
                     {.task_type = "ps", .task_id = 0}),
      {.job_id = kSharedJobId, .handle_signals = false}};
};

TEST_F(SharedJob, ATaskLearnsWhichJobThereIsAndJoinsIt) {
  EXPECT_EQ(job_there(), 0U);
  const rpc::Connection chief = begin(7);
  EXPECT_EQ(chief.shared_job, 7U);
  EXPECT_EQ(job_there(), 7U);
  const rpc::Connection worker = connect("worker:0", 50, 7);
  announce(chief, {.variables = {{"w", {at::kFloat, {{2}}}, true, {{.variable = 3}}}}});
  const rpc::FindReply found = find(worker, {"v", "w"});
  ASSERT_EQ(found.variables.size(), 1U);
  EXPECT_EQ(found.variables[0].name, "w");
  EXPECT_EQ(found.variables[0].slices[0].variable, 3U);
  EXPECT_FALSE(found.is_ready);
  announce(chief, {.variables = {}, .is_ready = true});
  EXPECT_TRUE(find(worker, {}).is_ready);
  EXPECT_EQ(find(worker, {}).variables.size(), 1U);
}

TEST_F(SharedJob, VariablesStayWhenTheChiefSaysFarewell) {
  {
    const rpc::Connection chief = begin(7);
    chief.control->create_variables({{1, "w", {at::kFloat, {{2}}}, true}}, patience());
    chief.data->leave();
  }
  const rpc::Connection again = connect("chief:0", 8, 7);
  EXPECT_EQ(again.control->health(patience()).variables, 1U);
}

TEST_F(SharedJob, AnotherJobOfTheChiefReplacesIt) {
  const rpc::Connection first = begin(7);
  announce(first, {.variables = {{"w", {at::kFloat, {{2}}}, true, {{.variable = 3}}}}});
  const rpc::Connection second = begin(9);
  EXPECT_EQ(job_there(), 9U);
  EXPECT_TRUE(find(second, {}).variables.empty());
  EXPECT_THAT([&] { connect("worker:0", 50, 7); },
              throws_error(ErrorCode::aborted, "another coordinator took its place"));
}

// The job of a coordinator, whose workers run no program, is none that others join.
TEST_F(SharedJob, ACoordinatorsJobIsNotShared) {
  const rpc::Connection coordinator =
      rpc::connect_task({.address = server_.address(),
                         .task = "ps:0",
                         .caller = rpc::identity_of_process("chief:0", kSharedJobId, 7),
                         .coordinator_incarnation = 7,
                         .start_order = rpc::start_order_now(),
                         .deadline = patience()});
  EXPECT_EQ(coordinator.shared_job, 0U);
  EXPECT_EQ(job_there(), 0U);
}

}  // namespace
}  // namespace cohort
