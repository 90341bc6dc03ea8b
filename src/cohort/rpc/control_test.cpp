// SPDX-License-Identifier: Apache-2.0
#include "cohort/rpc/control.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <optional>
#include <thread>

#include "cohort/cluster/cluster_resolver.h"
#include "cohort/core/error.h"
#include "cohort/rpc/connection.h"
#include "cohort/rpc/reserved_port.h"
#include "cohort/testing/channel_fixture.h"
#include "cohort/testing/error_of.h"
#include "cohort/testing/launcher_environment.h"
#include "cohort/testing/raw_socket.h"
#include "cohort/testing/throws_error.h"
#include "cohort/testing/without_descriptors.h"

namespace cohort::rpc {
namespace {

using cohort::testing::DeadAddress;
using cohort::testing::patience;
using cohort::testing::Promised;
using cohort::testing::RawSocket;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Records the requests; throws the error that a test sets. Thread-safe as far as the tests need.
struct RecordingService : ControlService, CoordinatorSession {
  HandshakeReply handshake(const HandshakeRequest& request, const Caller& from) override {
    asked = request;
    caller = from;
    pass_gate();
    return reply;
  }
  TaskHealth health() override {
    pass_gate();
    if (failure) throw Error(*failure);
    TaskHealth health{1, 2, 3, 4, 5, 6, 7, 8};
    health.uptime = std::chrono::seconds(9);
    health.closures_failed = 10;
    health.closures_queued = 11;
    health.closures_running = 12;
    health.connections_lost = 13;
    health.since_last_end = std::chrono::seconds(14);
    health.coordinator = CoordinatorHealth{15, 16, 17, 18, 19, 20, 21, {{true, 22, 23}}};
    health.variables = 24;
    health.variable_bytes = 25;
    health.rows_per_second = 26.5;
    health.by_variable = {{"v", 27, 28, 29, 30, 31, 32, {{33, 34}}}};
    return health;
  }
  void set_membership(const Membership& given) override { membership = given; }
  void place_variables(const Placement& given) override { placement = given; }
  void register_function(const FunctionBody& given) override { body = given; }
  void create_variables(const std::vector<VariableSpec>& given) override { variables = given; }
  void create_iterator(const IteratorSpec& given) override { iterator = given; }
  void release(const std::vector<std::uint64_t>& given) override { released = given; }
  std::shared_ptr<CoordinatorSession> session_of(const Caller& from) override {
    caller = from;
    if (refusal) throw Error(*refusal);
    return {std::shared_ptr<void>(), this};
  }
  void shutdown(const Caller& from, std::chrono::milliseconds given) override {
    caller = from;
    grace = given;
  }
  void pass_gate() {
    entered.set(true);
    if (is_gated) gate.wait();
  }

  HandshakeRequest asked;
  HandshakeReply reply;
  std::optional<Error> failure;
  std::optional<Error> refusal;  // thrown by every session_of()
  Caller caller;                 // of the last call
  Promised<bool> entered;
  Promised<bool> gate;  // a member, since a call may outlast its test's body
  std::atomic<bool> is_gated{false};
  FunctionBody body;
  Membership membership;
  Placement placement;
  std::vector<VariableSpec> variables;
  IteratorSpec iterator;
  std::vector<std::uint64_t> released;
  std::chrono::milliseconds grace{};
};

class ControlTest : public ::testing::Test {
 protected:
  ControlTest()
      : server_(serve_control("127.0.0.1:0", service_)),
        client_(control_client(server_->address(), "ps:1")) {}

  static Error error_of_health(ControlClient& client, Deadline deadline = patience()) {
    try {
      client.health(deadline);
    } catch (const Error& error) {
      return error;
    }
    return Error(ErrorCode::unknown, "healthy");
  }

  static Error error_of_serving(const std::string& address) {
    RecordingService service;
    return testing::error_of([&] { serve_control(address, service); });
  }

  RecordingService service_;
  std::unique_ptr<ControlServer> server_;
  std::unique_ptr<ControlClient> client_;
};

TEST_F(ControlTest, AHandshakeCarriesBothIdentities) {
  service_.reply = {{"ps:1", "job", ~0ULL, 9, "2.0"}, {{"stream", ""}, {"grpc", ":2"}}, 13};
  const HandshakeReply reply = client_->handshake({{"chief:0", "job", 5, 1, "1.13"},
                                                   "ps:1",
                                                   77,
                                                   std::chrono::seconds(3),
                                                   true,
                                                   12,
                                                   PayloadChecksums::always,
                                                   true},
                                                  patience());
  EXPECT_EQ(service_.asked.caller.task, "chief:0");
  EXPECT_EQ(service_.asked.caller.job_id, "job");
  EXPECT_EQ(service_.asked.caller.incarnation, 5U);
  EXPECT_EQ(service_.asked.caller.protocol_version, 1U);
  EXPECT_EQ(service_.asked.caller.torch_version, "1.13");
  EXPECT_EQ(service_.asked.expected_task, "ps:1");
  EXPECT_EQ(service_.asked.coordinator_incarnation, 77U);
  EXPECT_EQ(service_.asked.data_timeout, std::chrono::seconds(3));
  EXPECT_TRUE(service_.asked.is_returning);
  EXPECT_EQ(service_.asked.start_order, 12U);
  EXPECT_EQ(service_.asked.payload_checksums, PayloadChecksums::always);
  EXPECT_TRUE(service_.asked.has_first_task);
  EXPECT_EQ(reply.server.task, "ps:1");
  EXPECT_EQ(reply.server.incarnation, ~0ULL);
  ASSERT_EQ(reply.endpoints.size(), 2U);
  EXPECT_EQ(reply.endpoints[1].backend, "grpc");
  EXPECT_EQ(reply.endpoints[1].address, ":2");
  EXPECT_EQ(reply.start_order, 13U);
}

// Regression: a coordinator that was stopped and continued overwrote what its successor had made.
TEST_F(ControlTest, EveryCallNamesTheStartOfItsCoordinator) {
  const auto client = control_client(server_->address(), "ps:1", 77);
  const std::vector<std::function<void()>> calls = {
      [&] { client->handshake({}, patience()); },
      [&] { client->register_function({}, patience()); },
      [&] { client->create_variables({}, patience()); },
      [&] { client->create_iterator({}, patience()); },
      [&] { client->release({}, patience()); },
      [&] { client->shutdown(std::chrono::milliseconds(1), patience()); }};
  for (const auto& call : calls) {
    service_.caller = {};
    call();
    EXPECT_EQ(service_.caller.coordinator_incarnation, 77U);
    EXPECT_NE(service_.caller.address, "");
  }
}

TEST_F(ControlTest, WhatIsNoNumberIsNoCoordinator) {
  client_->release({}, patience());
  EXPECT_EQ(service_.caller.coordinator_incarnation, 0U);
}

TEST_F(ControlTest, ACoordinatorHearsThatAnotherHasTakenItsPlace) {
  service_.refusal = replaced_error("ps:1");
  try {
    client_->release({5}, patience());
    ADD_FAILURE() << "was not refused";
  } catch (const Error& error) {
    EXPECT_TRUE(is_replaced(error)) << error.what();
    EXPECT_EQ(error.origin(), "ps:1");
  }
  EXPECT_TRUE(service_.released.empty());
}

TEST_F(ControlTest, AHandshakeWithANegativeDataTimeoutIsRefused) {
  const auto shake = [&] {
    client_->handshake({{"chief:0"}, "ps:1", 77, std::chrono::seconds(-1)}, patience());
  };
  EXPECT_THAT(shake, cohort::testing::throws_error(ErrorCode::invalid_argument,
                                                   "at least 0 ns, got -1000000000"));
}

TEST_F(ControlTest, HealthHasEachCount) {
  const TaskHealth health = client_->health(patience());
  EXPECT_EQ(health.incarnation, 1U);
  EXPECT_EQ(health.closures_run, 2U);
  EXPECT_EQ(health.pushes_applied, 3U);
  EXPECT_EQ(health.pushes_dropped, 4U);
  EXPECT_EQ(health.pulled_bytes, 5U);
  EXPECT_EQ(health.pushed_bytes, 6U);
  EXPECT_EQ(health.broken_frames, 7U);
  EXPECT_EQ(health.protocol_errors, 8U);
  EXPECT_EQ(health.uptime, std::chrono::seconds(9));
  EXPECT_EQ(health.closures_failed, 10U);
  EXPECT_EQ(health.closures_queued, 11U);
  EXPECT_EQ(health.closures_running, 12U);
  EXPECT_EQ(health.connections_lost, 13U);
  EXPECT_EQ(health.since_last_end, Duration(std::chrono::seconds(14)));
  EXPECT_FALSE(health.last_error);
  EXPECT_EQ(health.variables, 24U);
  EXPECT_EQ(health.variable_bytes, 25U);
  EXPECT_EQ(health.rows_per_second, 26.5);
  EXPECT_TRUE(health.by_variable.empty()) << "the caller has not named the job";
}

TEST_F(ControlTest, HealthHasTheCoordinatorsView) {
  const TaskHealth health = client_->health(patience());
  ASSERT_TRUE(health.coordinator);
  const CoordinatorHealth& own = *health.coordinator;
  EXPECT_EQ(own.queued, 15U);
  EXPECT_EQ(own.in_flight, 16U);
  EXPECT_EQ(own.completed, 17U);
  EXPECT_EQ(own.failed, 18U);
  EXPECT_EQ(own.cancelled, 19U);
  EXPECT_EQ(own.retries, 20U);
  EXPECT_EQ(own.traces, 21U);
  ASSERT_EQ(own.workers.size(), 1U);
  EXPECT_TRUE(own.workers[0].is_ready);
  EXPECT_EQ(own.workers[0].closures, 22U);
  EXPECT_EQ(own.workers[0].times_lost, 23U);
}

// One after the other, a few stopped tasks took minutes to notice.
TEST(AddressOfAnEndpoint, IsThatOfTheHostThatWasDialled) {
  EXPECT_EQ(address_of({"stream", ""}, "10.0.0.1:4000"), "10.0.0.1:4000");
  EXPECT_EQ(address_of({"stream", ":4711"}, "10.0.0.1:4000"), "10.0.0.1:4711");
  EXPECT_EQ(address_of({"stream", ":4711"}, "[::1]:4000"), "[::1]:4711");
  EXPECT_EQ(address_of({"inprocess", "ps:0"}, "10.0.0.1:4000"), "ps:0");
}

TEST(Health, IsAskedOfAllAtOnce) {
  constexpr std::size_t kTasks = 4;
  std::vector<std::unique_ptr<RecordingService>> services;
  std::vector<std::unique_ptr<ControlServer>> servers;
  std::vector<std::shared_ptr<ControlClient>> clients(1);  // one is null
  for (std::size_t i = 0; i < kTasks; ++i) {
    services.push_back(std::make_unique<RecordingService>());
    services.back()->is_gated = true;
    servers.push_back(serve_control("127.0.0.1:0", *services.back()));
    clients.push_back(control_client(servers.back()->address(), "ps:" + std::to_string(i)));
  }
  services.back()->failure = Error(ErrorCode::unavailable, "it ends");
  std::thread answers([&] {
    for (const auto& service : services) service->entered.wait();  // all before the first answer
    for (const auto& service : services) service->gate.set(true);
  });
  const auto errors = health_of_all(clients, patience());
  answers.join();
  ASSERT_EQ(errors.size(), kTasks + 1);
  for (std::size_t i = 0; i < kTasks; ++i) EXPECT_FALSE(errors[i]) << errors[i]->what();
  ASSERT_TRUE(errors.back());
  EXPECT_EQ(errors.back()->message(), "it ends");
}

TEST(Health, OfWhoDoesNotAnswerIsAnErrorAtTheDeadline) {
  RecordingService service;
  service.is_gated = true;
  const auto server = serve_control("127.0.0.1:0", service);
  const auto errors = health_of_all({control_client(server->address(), "ps:1")},
                                    Deadline::after(std::chrono::milliseconds(200)));
  service.gate.set(true);
  ASSERT_TRUE(errors.at(0));
  EXPECT_EQ(errors[0]->code(), ErrorCode::deadline_exceeded);
  EXPECT_EQ(errors[0]->origin(), "ps:1");
}

// Regression: the call failed with "no answer before the deadline", or with gRPC's text.
TEST(Health, OfATaskThatIsNotThereSaysThatNobodyListens) {
  const ReservedPort port;
  const std::string address = "127.0.0.1:" + std::to_string(port.number());
  EXPECT_THAT(
      [&] { control_client(address, "ps:1")->health(patience()); },
      cohort::testing::throws_error(
          ErrorCode::unavailable,
          "expected ps:1 (" + address + ") to answer, got: connection refused, nobody listens"));
}

int exit_code_of_a_call_without_descriptors() {
  RecordingService service;
  const auto server = serve_control("127.0.0.1:0", service);
  const auto client = control_client(server->address(), "ps:1");
  // UBSan opens a pipe when it sees a type for the first time, and reports the object if it cannot:
  // so a call that ends well and one that fails come before.
  const auto other = serve_control("127.0.0.1:0", service);
  control_client(other->address(), "ps:0")->health(patience());
  const ReservedPort nobody;
  const auto absent = control_client("127.0.0.1:" + std::to_string(nobody.number()), "ps:2");
  EXPECT_THROW(absent->health(patience()), Error);
  try {
    const cohort::testing::WithoutDescriptors none;
    client->health(patience());
    ADD_FAILURE() << "it got an answer";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::resource_exhausted) << error.what();
    EXPECT_EQ(error.origin(), "");
    EXPECT_THAT(error.message(), HasSubstr("ulimit -n"));
  }
  return ::testing::Test::HasFailure() ? 1 : 0;
}

// Regression: the error blamed the task: "is the task running?". The process is one of its own,
// because gRPC aborts if its threads, of earlier tests, need a descriptor meanwhile.
TEST(HealthDeathTest, WithoutADescriptorIsALackOfThisProcess) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(std::exit(exit_code_of_a_call_without_descriptors()), ::testing::ExitedWithCode(0),
              "");
}

// Regression: the last attempt had no time left to be refused.
TEST(ConnectTask, ToOneThatIsNotThereSaysThatNobodyListens) {
  const ReservedPort port;
  const std::string address = "127.0.0.1:" + std::to_string(port.number());
  const auto connect = [&] {
    connect_task({.address = address,
                  .task = "ps:1",
                  .caller = identity_of_process("chief:0", "job", 1),
                  .deadline = Deadline::after(Duration::zero())});
  };
  EXPECT_THAT(connect, cohort::testing::throws_error(ErrorCode::unavailable, "nobody listens"));
}

TEST(DefaultJobId, IsThatOfTheAddressesHoweverTheyAreWritten) {
  const auto of = [](const char* address) {
    return default_job_id(ClusterSpec({{"ps", {address}}}).to_json());
  };
  EXPECT_EQ(of("localhost:1"), of("127.0.0.1:1"));
  EXPECT_EQ(of("[::1]:1"), of("127.0.0.1:1"));
  EXPECT_NE(of("localhost:2"), of("127.0.0.1:1"));
}

TEST(JobIdTest, IsThatOfTheProgramThenOfTheEnvironment) {
  const testing::LauncherEnvironment environment;
  const ClusterSpec spec({{"ps", {"h:1"}}});
  EXPECT_EQ(job_id_of(spec).text, default_job_id(spec.to_json()));
  const testing::LauncherEnvironment::Variables step = {{"SLURM_JOB_ID", "4711"},
                                                        {"SLURM_PROCID", "0"},
                                                        {"SLURM_STEP_NUM_TASKS", "1"},
                                                        {"SLURM_STEP_NODELIST", "h"},
                                                        {"SLURM_STEP_TASKS_PER_NODE", "1"}};
  environment.set({{"SLURM_JOB_ID", "4711"}});
  EXPECT_EQ(job_id_of(spec).text, default_job_id(spec.to_json())) << "no task of Slurm's";
  environment.set(step);
  EXPECT_EQ(job_id_of(spec).text, "slurm-4711");
  environment.set({{"COHORT_JOB_ID", "mine"}});
  EXPECT_EQ(job_id_of(spec).text, "mine");
  EXPECT_EQ(job_id_of(spec, "given").text, "given");
  EXPECT_EQ(job_id_of(spec, "given").from, "the program");
}

TEST_F(ControlTest, AFunctionArrivesWithProgramsAndVariables) {
  const Bytes program{std::byte{0}, std::byte{255}};
  client_->register_function({.id = 3,
                              .name = "step",
                              .registered_name = "",
                              .programs_before = 5,
                              .programs = {program, {}},
                              .variables = {{"model/weight", 1ULL << 40}}},
                             patience());
  EXPECT_EQ(service_.body.id, 3U);
  EXPECT_EQ(service_.body.name, "step");
  EXPECT_EQ(service_.body.programs_before, 5U);
  EXPECT_THAT(service_.body.programs, ElementsAre(program, Bytes()));
  ASSERT_EQ(service_.body.variables.size(), 1U);
  EXPECT_EQ(service_.body.variables[0].name, "model/weight");
  EXPECT_EQ(service_.body.variables[0].id, 1ULL << 40);
}

TEST_F(ControlTest, ServersAndPlacesArrive) {
  client_->set_membership({.epoch = 3, .servers = {{1ULL << 33, "ps:1", "host:4", 1ULL << 63}}},
                          patience());
  EXPECT_EQ(service_.membership.epoch, 3U);
  ASSERT_EQ(service_.membership.servers.size(), 1U);
  const Member& server = service_.membership.servers[0];
  EXPECT_EQ(server.id, 1ULL << 33);
  EXPECT_EQ(server.task, "ps:1");
  EXPECT_EQ(server.address, "host:4");
  EXPECT_EQ(server.incarnation, 1ULL << 63);
  client_->place_variables({.version = 9, .slices = {{1ULL << 40, 1ULL << 33}, {2, 1, 10, 20}}},
                           patience());
  EXPECT_EQ(service_.placement.version, 9U);
  ASSERT_EQ(service_.placement.slices.size(), 2U);
  EXPECT_EQ(service_.placement.slices[0].variable, 1ULL << 40);
  EXPECT_EQ(service_.placement.slices[0].server, 1ULL << 33);
  EXPECT_EQ(service_.placement.slices[0].rows, Slice::kAllRows);
  EXPECT_EQ(service_.placement.slices[1].first_row, 10);
  EXPECT_EQ(service_.placement.slices[1].rows, 20);
}

TEST_F(ControlTest, AProgramOfManyMegabytesArrives) {
  client_->register_function({.programs = {Bytes(6'000'000, std::byte{7})}}, patience());
  EXPECT_EQ(service_.body.programs.at(0).size(), 6'000'000U);
}

TEST_F(ControlTest, VariablesArriveWithTheirSpecs) {
  const InitialValue initial{.kind = 2,
                             .first = 0.5,
                             .second = 0.25,
                             .seed = ~0ULL,
                             .name = "table",
                             .whole = {at::kFloat, {{9, 3}}},
                             .rows = InitialValue::Rows{.begin = 0, .end = 4}};
  client_->create_variables({{1, "a", {at::kFloat, {{2, -1}}}, true},
                             {2, "b", {at::kLong, std::nullopt}, false},
                             {3, "c", {at::kBool, std::vector<std::int64_t>{}}, true},
                             {.id = 4, .name = "d", .initial = initial}},
                            patience());
  ASSERT_EQ(service_.variables.size(), 4U);
  EXPECT_FALSE(service_.variables[0].initial.has_value());
  const InitialValue got = service_.variables[3].initial.value();
  EXPECT_EQ(got.kind, 2);
  EXPECT_EQ(got.first, 0.5);
  EXPECT_EQ(got.second, 0.25);
  EXPECT_EQ(got.seed, ~0ULL);
  EXPECT_EQ(got.name, "table");
  EXPECT_EQ(got.whole, initial.whole);
  EXPECT_EQ(got.rows.value().begin, 0);
  EXPECT_EQ(got.rows.value().end, 4);
  EXPECT_EQ(service_.variables[0].name, "a");
  EXPECT_EQ(service_.variables[0].spec, (TensorSpec{at::kFloat, {{2, -1}}}));
  EXPECT_EQ(service_.variables[1].spec, (TensorSpec{at::kLong, std::nullopt}));
  EXPECT_FALSE(service_.variables[1].is_trainable);
  EXPECT_EQ(service_.variables[2].spec, (TensorSpec{at::kBool, std::vector<std::int64_t>{}}));
}

TEST_F(ControlTest, IteratorReleaseAndShutdownArrive) {
  const std::vector<FileFingerprint> files{
      {.path = "a", .size_bytes = 5, .modified_ns = -3, .checksum = 0},
      {.path = "b", .is_missing = true}};
  client_->create_iterator(
      {.id = 4, .dataset = {std::byte{1}}, .seed = 9, .epoch = 0, .files = files}, patience());
  client_->release({5, 6}, patience());
  client_->shutdown(std::chrono::milliseconds(1500), patience());
  EXPECT_EQ(service_.iterator.id, 4U);
  EXPECT_EQ(service_.iterator.dataset, Bytes{std::byte{1}});
  EXPECT_EQ(service_.iterator.seed, 9U);
  EXPECT_EQ(service_.iterator.epoch, 0U);
  EXPECT_EQ(service_.iterator.files, files);
  EXPECT_THAT(service_.released, ElementsAre(5, 6));
  EXPECT_EQ(service_.grace, std::chrono::milliseconds(1500));
}

TEST_F(ControlTest, AServicesErrorComesBackWhole) {
  service_.failure = Error(ErrorCode::aborted, "gone\nfor good", ErrorCause::handle_lost)
                         .at("worker:4", 12)
                         .during("x");
  const Error error = error_of_health(*client_);
  EXPECT_EQ(error.code(), ErrorCode::aborted);
  EXPECT_EQ(error.cause(), ErrorCause::handle_lost);
  EXPECT_EQ(error.message(), "gone\nfor good");
  EXPECT_EQ(error.origin(), "worker:4");
  EXPECT_EQ(error.incarnation(), 12U);
  EXPECT_THAT(error.context(), ElementsAre("x", "asking the health of ps:1"));
}

TEST_F(ControlTest, EachCodeComesBackWithTheTaskAsOrigin) {
  for (int code = 1; code <= 16; ++code) {
    service_.failure = Error(ErrorCode(code), "no");
    const Error error = error_of_health(*client_);
    EXPECT_EQ(int(error.code()), code);
    EXPECT_EQ(error.origin(), "ps:1");
    EXPECT_EQ(error.message(), "no");
  }
}

TEST_F(ControlTest, ALongErrorIsShortenedNotLost) {
  service_.failure = Error(ErrorCode::not_found, std::string(1'000'000, 'x'));
  const Error error = error_of_health(*client_);
  EXPECT_EQ(error.code(), ErrorCode::not_found);
  EXPECT_GT(error.message().size(), 10'000U);
}

TEST_F(ControlTest, AnUnreachableTaskIsLostAndNamed) {
  const std::string address = server_->address();
  server_.reset();
  for (int call = 0; call < 3; ++call) {
    const Error error = error_of_health(*client_);
    EXPECT_EQ(error.code(), ErrorCode::unavailable);
    EXPECT_EQ(error.cause(), ErrorCause::peer_lost);
    EXPECT_EQ(error.origin(), "ps:1");
    EXPECT_THAT(error.message(), HasSubstr("ps:1 (" + address + ")"));
  }
}

TEST_F(ControlTest, ATaskThatNeverAnswersMeetsTheDeadlineAndIsNamed) {
  service_.is_gated = true;
  const Error error = error_of_health(*client_, Deadline::after(std::chrono::milliseconds(50)));
  EXPECT_EQ(error.code(), ErrorCode::deadline_exceeded);
  EXPECT_EQ(error.origin(), "ps:1");
  EXPECT_THAT(error.what(), HasSubstr("asking the health of ps:1"));
  service_.gate.set(true);
}

TEST_F(ControlTest, ADeadAddressMeetsTheDeadline) {
  const DeadAddress dead;
  const auto client = control_client(dead.address(), "ps:2");
  EXPECT_EQ(error_of_health(*client, Deadline::after(std::chrono::milliseconds(100))).code(),
            ErrorCode::deadline_exceeded);
}

TEST_F(ControlTest, ATaskThatStartsLateIsReachedByTheSameClient) {
  const std::string address = server_->address();
  server_.reset();
  for (int call = 0; call < 5; ++call) error_of_health(*client_);
  server_ = serve_control(address, service_);
  EXPECT_EQ(error_of_health(*client_).message(), "healthy");
}

TEST_F(ControlTest, StopLetsRunningCallsFinish) {
  service_.is_gated = true;
  Promised<std::string> answer;
  std::thread caller([&] { answer.set(error_of_health(*client_).message()); });
  service_.entered.wait();
  std::thread stopper([&] { server_->stop(patience()); });
  service_.gate.set(true);
  EXPECT_EQ(answer.wait(), "healthy");
  stopper.join();
  caller.join();
  EXPECT_EQ(error_of_health(*client_).cause(), ErrorCause::peer_lost);
}

// Regression: the answer of a call that had just ended was cancelled on its way.
TEST_F(ControlTest, StopLetsAnswersArrive) {
  service_.is_gated = true;
  const std::string long_address(16 << 20, 'a');  // takes long to send
  service_.reply.endpoints = {{"stream", long_address}};
  Promised<std::size_t> arrived;
  std::thread caller([&] {
    try {
      arrived.set(client_->handshake({}, patience()).endpoints.at(0).address.size());
    } catch (const Error& error) {
      ADD_FAILURE() << error.what();
      arrived.set(0);
    }
  });
  service_.entered.wait();
  std::thread stopper([&] { server_->stop(patience()); });
  service_.gate.set(true);
  EXPECT_EQ(arrived.wait(), long_address.size());
  stopper.join();
  caller.join();
}

TEST_F(ControlTest, StopCancelsCallsThatOutlastTheDeadline) {
  service_.is_gated = true;
  Promised<int> cause;
  std::thread caller([&] { cause.set(int(error_of_health(*client_).cause())); });
  service_.entered.wait();
  std::thread stopper([&] { server_->stop(Deadline::after(std::chrono::milliseconds(20))); });
  EXPECT_EQ(cause.wait(), int(ErrorCause::peer_lost));
  service_.gate.set(true);
  stopper.join();
  caller.join();
}

TEST_F(ControlTest, ATakenPortIsRefusedByName) {
  EXPECT_EQ(error_of_serving(server_->address()).code(), ErrorCode::resource_exhausted);
  RawSocket other;
  const std::string address = other.listen();
  const Error error = error_of_serving(address);
  EXPECT_EQ(error.code(), ErrorCode::resource_exhausted);
  EXPECT_THAT(error.message(), HasSubstr(address));
}

TEST_F(ControlTest, AnAddressOfAnotherMachineIsRefused) {
  EXPECT_EQ(error_of_serving("192.0.2.1:0").code(), ErrorCode::invalid_argument);
  EXPECT_EQ(error_of_serving("nonsense").code(), ErrorCode::invalid_argument);
}

TEST_F(ControlTest, CallsFromManyThreadsAreServed) {
  std::atomic<int> healthy{0};
  std::vector<std::thread> callers;
  for (int thread = 0; thread < 4; ++thread) {
    callers.emplace_back([&] {
      for (int i = 0; i < 20; ++i) healthy += client_->health(patience()).pushed_bytes == 6;
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(healthy, 80);
}

}  // namespace
}  // namespace cohort::rpc
