// SPDX-License-Identifier: Apache-2.0
#include "cohort/coordinator/workers/health_listener.h"

#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>

#include "cohort/coordinator/cluster_coordinator.h"
#include "cohort/data/iterator.h"
#include "cohort/parameter_server_strategy/parameter_server_home.h"
#include "cohort/rpc/health_probe.h"
#include "cohort/testing/channel_fixture.h"
#include "cohort/testing/fake_task.h"
#include "cohort/testing/metrics_parser.h"
#include "cohort/testing/raw_socket.h"
#include "cohort/testing/throws_error.h"
#include "cohort/testing/warnings.h"
#include "cohort/testing/without_descriptors.h"

namespace cohort {
namespace {

using ::testing::AllOf;
using testing::FakeTask;
using ::testing::HasSubstr;
using testing::kFakeJob;
using testing::patience;
using testing::throws_error;
using testing::Warnings;
using State = rpc::ProbeResult::State;

// A coordinator with an address of its own, one worker and one parameter server.
class CoordinatorHealthTest : public ::testing::Test {
 protected:
  static std::string free_address() {
    testing::RawSocket taken;
    return taken.listen();
  }
  void start(const CoordinatorOptions& options = {}) {
    const ClusterSpec spec(
        {{"chief", {address}}, {"worker", {worker.address()}}, {"ps", {ps.address()}}});
    strategy.emplace(SimpleResolver(spec, {.task_type = "chief", .task_id = 0}),
                     ParameterServerOptions{.cluster = {.job_id = kFakeJob}});
    coordinator.emplace(*strategy, options);
  }
  rpc::ProbeResult probe(const std::string& job_id = kFakeJob) const {
    return rpc::probe_health({{job_id.empty() ? "" : "chief:0", address}}, job_id, patience())
        .at(0);
  }

  const std::string address = free_address();
  FakeTask ps{"ps:0"};
  FakeTask worker{"worker:0"};
  std::optional<ParameterServerStrategy> strategy;
  std::optional<ClusterCoordinator> coordinator;
  const Function nothing = Function::registered("nothing");
};

TEST_F(CoordinatorHealthTest, AnswersAtTheChiefsAddress) {
  start();
  for (int i = 0; i < 3; ++i) coordinator->schedule(nothing);
  coordinator->join();
  const rpc::ProbeResult result = probe();
  ASSERT_EQ(result.state, State::answers) << result.reason;
  ASSERT_TRUE(result.health.coordinator);
  EXPECT_EQ(result.health.coordinator->completed, 3U);
  EXPECT_EQ(result.health.coordinator->queued, 0U);
  EXPECT_NE(result.health.incarnation, strategy->home()->connection().incarnation())
      << "which is a secret";
  EXPECT_EQ(result.health.coordinator->workers.size(), 1U);
  EXPECT_TRUE(result.health.coordinator->workers.at(0).is_ready);
  EXPECT_TRUE(result.health.since_last_end);
  EXPECT_FALSE(result.health.last_error);
}

TEST_F(CoordinatorHealthTest, CountsWhatIsOpen) {
  worker.answers = false;
  start({.in_flight_per_worker = 1});
  for (int i = 0; i < 3; ++i) coordinator->schedule(nothing);
  ASSERT_TRUE(worker.await_closures(1));
  const rpc::ProbeResult result = probe();
  ASSERT_TRUE(result.health.coordinator) << result.reason;
  EXPECT_EQ(result.health.coordinator->in_flight, 1U);
  EXPECT_EQ(result.health.coordinator->queued, 2U);
  EXPECT_FALSE(result.health.since_last_end);
}

TEST_F(CoordinatorHealthTest, CountsFailuresAndKeepsTheLastError) {
  worker.answers = false;
  start();
  coordinator->schedule(nothing);
  ASSERT_TRUE(worker.await_closures(1));
  worker.end({{.closure_id = worker.closures().at(0).closure_id,
               .status = rpc::ClosureEnd::Status::failed,
               .error = Error(ErrorCode::invalid_argument, "no such pixel", ErrorCause::application)
                            .at("worker:0")}});
  EXPECT_THAT([&] { coordinator->join(); },
              throws_error(ErrorCode::invalid_argument, "no such pixel"));
  const TaskHealth health = probe().health;
  ASSERT_TRUE(health.coordinator);
  EXPECT_EQ(health.coordinator->failed, 1U);
  EXPECT_EQ(health.coordinator->completed, 0U);
  ASSERT_TRUE(health.last_error);
  EXPECT_EQ(health.last_error->text, "no such pixel");
  EXPECT_EQ(health.last_error->origin, "worker:0");
  EXPECT_EQ(probe("").health.last_error->text, "") << "for who has not named the job";
}

TEST_F(CoordinatorHealthTest, CountsLostWorkers) {
  start();
  worker.close_channels();
  coordinator->schedule(nothing).fetch(patience());
  const TaskHealth health = probe().health;
  EXPECT_EQ(health.connections_lost, 1U);
  ASSERT_TRUE(health.coordinator);
  EXPECT_EQ(health.coordinator->workers.at(0).times_lost, 1U);
  ASSERT_TRUE(health.last_error);
  EXPECT_EQ(health.last_error->cause, ErrorCause::peer_lost);
}

TEST_F(CoordinatorHealthTest, TheLastErrorSaysThatAnEpochWaitsForALostWorker) {
  start();
  const Function draw([](Iterator& it) { it.next<at::Tensor>(); });
  const Epoch epoch = coordinator->begin_epoch(draw, Dataset::range(3));
  worker.close_channels();
  ASSERT_TRUE(worker.await_hellos(2));
  const TaskHealth health = probe().health;
  ASSERT_TRUE(health.last_error);
  EXPECT_EQ(health.last_error->origin, "worker:0");
  EXPECT_THAT(health.last_error->text, HasSubstr("the epoch waits until it returns"));
}

// Regression: the counts stayed zero.
TEST_F(CoordinatorHealthTest, CountsStepsOfEpochsThatRunEagerly) {
  start({.run_eagerly = true});
  const Function draw([](Iterator& it) { it.next<at::Tensor>(); });
  coordinator->run_epoch(draw, Dataset::range(3));
  const Function bad([](Iterator& it) { it.next<at::Tensor>().mm(at::ones({2, 2})); });
  EXPECT_THROW(coordinator->run_epoch(bad, Dataset::range(3)), Error);
  const TaskHealth health = probe().health;
  ASSERT_TRUE(health.coordinator);
  EXPECT_EQ(health.coordinator->completed, 3U);
  EXPECT_EQ(health.coordinator->failed, 1U);
  EXPECT_TRUE(health.since_last_end);
  EXPECT_TRUE(health.last_error);
}

TEST_F(CoordinatorHealthTest, AnswersWhereStepsRunEagerly) {
  start({.run_eagerly = true});
  coordinator->schedule(Function([] { return at::Tensor(); }, {.name = "bad"}));
  EXPECT_THROW(coordinator->join(), Error);
  const TaskHealth health = probe().health;
  ASSERT_TRUE(health.coordinator);
  EXPECT_EQ(health.coordinator->failed, 1U);
  EXPECT_TRUE(health.since_last_end);
  EXPECT_TRUE(health.last_error);
}

TEST_F(CoordinatorHealthTest, AnswersNothingElse) {
  start();
  const auto client = rpc::control_client(address, "chief:0", 7);
  const auto unimplemented = throws_error(ErrorCode::unimplemented, "expected GetHealth");
  EXPECT_THAT([&] { client->handshake({.coordinator_incarnation = 7}, patience()); },
              unimplemented);
  EXPECT_THAT([&] { client->register_function({.id = 1}, patience()); }, unimplemented);
  EXPECT_THAT([&] { client->create_variables({}, patience()); }, unimplemented);
  EXPECT_THAT([&] { client->create_iterator({}, patience()); }, unimplemented);
  EXPECT_THAT([&] { client->release({}, patience()); }, unimplemented);
  EXPECT_THAT([&] { client->shutdown(std::chrono::seconds(0), patience()); }, unimplemented);
  coordinator->schedule(nothing).fetch(patience());
}

TEST_F(CoordinatorHealthTest, LeavesItsAddressToItsSuccessor) {
  for (int i = 0; i < 3; ++i) {
    start();
    EXPECT_EQ(probe().state, State::answers);
    coordinator.reset();
    EXPECT_EQ(probe().state, State::nobody_listens);
    strategy.reset();
  }
}

TEST(CoordinatorAddress, IsNoneWhereTheResolverDoesNotSayWhoThisIs) {
  FakeTask ps("ps:0"), worker("worker:0");
  testing::RawSocket taken;
  const ClusterSpec spec(
      {{"chief", {taken.listen()}}, {"worker", {worker.address()}}, {"ps", {ps.address()}}});
  ParameterServerStrategy strategy(SimpleResolver(spec), {.cluster = {.job_id = kFakeJob}});
  EXPECT_EQ(strategy.home()->own_address(), "");
  Warnings warnings;
  ClusterCoordinator coordinator(strategy);
  EXPECT_EQ(warnings.text(), "");
}

TEST_F(CoordinatorHealthTest, MetricsHaveTheCoordinatorsView) {
  start({.serves_metrics = true});
  for (int i = 0; i < 3; ++i) coordinator->schedule(nothing);
  coordinator->join();
  testing::RawSocket socket = testing::RawSocket::connected(address);
  socket.write("GET /metrics HTTP/1.1\r\n\r\n");
  const std::string page = socket.read_all();
  ASSERT_TRUE(page.starts_with("HTTP/1.1 200 OK\r\n")) << page;
  const testing::MetricsParser metrics(page.substr(page.find("\r\n\r\n") + 4));
  EXPECT_EQ(
      metrics.value("cohort_coordinator_closures_total", {{"task", "chief:0"}, {"result", "ok"}}),
      3);
  EXPECT_EQ(
      metrics.value("cohort_coordinator_worker_ready", {{"task", "chief:0"}, {"worker", "0"}}), 1);
}

TEST(CoordinatorAddress, ThatIsTakenIsAWarningAndTrainingGoesOn) {
  FakeTask ps("ps:0"), worker("worker:0");
  testing::RawSocket taken;
  const std::string address = taken.listen();
  const ClusterSpec spec(
      {{"chief", {address}}, {"worker", {worker.address()}}, {"ps", {ps.address()}}});
  ParameterServerStrategy strategy(SimpleResolver(spec, {.task_type = "chief", .task_id = 0}),
                                   {.cluster = {.job_id = kFakeJob}});
  Warnings warnings;
  ClusterCoordinator coordinator(strategy);
  EXPECT_THAT(warnings.text(),
              AllOf(HasSubstr("cannot listen at " + address), HasSubstr("Training goes on"),
                    HasSubstr("cohort status"), HasSubstr("otherwise stop that process")));
  coordinator.schedule(Function::registered("nothing")).fetch(patience());
}

// The warning blamed another program at the port.
TEST(CoordinatorAddress, AWarningNamesALackOfDescriptors) {
  Warnings warnings;
  {
    const testing::WithoutDescriptors none;
    EXPECT_EQ(coordinator::internal::HealthListener::start(
                  "127.0.0.1:1", rpc::identity_of_process("chief:0", kFakeJob, 1),
                  [] { return TaskHealth(); }),
              nullptr);
  }
  EXPECT_THAT(warnings.text(), AllOf(HasSubstr("(ulimit -n)"), HasSubstr("chief:0"),
                                     ::testing::Not(HasSubstr("stop that process"))));
}

}  // namespace
}  // namespace cohort
