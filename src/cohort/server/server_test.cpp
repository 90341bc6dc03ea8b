// SPDX-License-Identifier: Apache-2.0
#include "cohort/server/server.h"

#include <ATen/Parallel.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <functional>
#include <future>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cohort/cluster/cluster_resolver.h"
#include "cohort/core/effect_handler.h"
#include "cohort/core/log.h"
#include "cohort/data/dataset.h"
#include "cohort/function/registry.h"
#include "cohort/rpc/connection.h"
#include "cohort/rpc/messages.h"
#include "cohort/rpc/reserved_port.h"
#include "cohort/server/closures/iterator_table.h"
#include "cohort/testing/channel_fixture.h"
#include "cohort/testing/faulty_proxy.h"
#include "cohort/testing/metrics_parser.h"
#include "cohort/testing/raw_socket.h"
#include "cohort/testing/throws_error.h"
#include "cohort/testing/without_threads.h"

namespace cohort {
namespace {

using testing::patience;
using testing::throws_error;

constexpr const char* kJob = "server_test";

using testing::Promised;
using Tensors = std::vector<at::Tensor>;

// Pipelines return their elements after the gate opens. Each test has its own gate.
struct Gate {
  Promised<bool> is_entered, may_go;
};
std::atomic<Gate*> gate{nullptr};

const bool kIsRegistered = [] {
  function::register_function("server_test.gated", [](Tensors inputs) {
    if (Gate* const now = gate) {
      now->is_entered.set(true);
      now->may_go.wait();
    }
    return inputs;
  });
  return true;
}();

// A parameter server in this process, and coordinators that call it.
class ServerTest : public ::testing::Test {
 protected:
  ServerTest() : ServerTest({.job_id = kJob, .handle_signals = false}) {}
  explicit ServerTest(const ServerOptions& options)
      : server(SimpleResolver(ClusterSpec({{"worker", {"127.0.0.1:1"}}, {"ps", {free_address()}}}),
                              {.task_type = "ps", .task_id = 0}),
               options) {}

  // An address where nobody listens, and where no other program can listen.
  static std::string free_address() {
    static std::vector<rpc::ReservedPort> ports;
    return "127.0.0.1:" + std::to_string(ports.emplace_back().number());
  }

  static rpc::Identity identity(std::uint64_t start, const std::string& job = kJob) {
    return rpc::identity_of_process("chief:0", job, start);
  }
  std::unique_ptr<rpc::ControlClient> client(std::uint64_t start) {
    return rpc::control_client(server.address(), "ps:0", start);
  }
  rpc::HandshakeReply shake(std::uint64_t start, bool is_returning = false,
                            bool has_first_task = false) {
    return client(start)->handshake({.caller = identity(start),
                                     .expected_task = "ps:0",
                                     .coordinator_incarnation = start,
                                     .is_returning = is_returning,
                                     .start_order = start,
                                     .has_first_task = has_first_task},
                                    patience());
  }
  rpc::HandshakeReply shake_with_first_task(std::uint64_t start) {
    return shake(start, false, true);
  }
  rpc::Connection connect(std::uint64_t start) {
    return rpc::connect_task({.address = server.address(),
                              .task = "ps:0",
                              .caller = identity(start),
                              .coordinator_incarnation = start,
                              .start_order = start,
                              .deadline = patience()});
  }
  // Calls that each change something.
  static std::vector<std::pair<std::string, std::function<void(rpc::ControlClient&)>>> calls() {
    return {{"membership", [](auto& to) { to.set_membership({}, patience()); }},
            {"placement", [](auto& to) { to.place_variables({}, patience()); }},
            {"function", [](auto& to) { to.register_function({.id = 1}, patience()); }},
            {"variables",
             [](auto& to) {
               to.create_variables({{1, "v", {at::kFloat, {{2}}}, true}}, patience());
             }},
            {"iterator", [](auto& to) { to.create_iterator({.id = 1}, patience()); }},
            {"release", [](auto& to) { to.release({1}, patience()); }},
            {"shutdown", [](auto& to) { to.shutdown(std::chrono::milliseconds(0), patience()); }}};
  }
  bool has_variable(std::uint64_t start) {
    try {
      connect(start).data->call(rpc::to_frame(rpc::PullRequest{{1}}), patience(), "pulling");
      return true;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::not_found) << error.what();
      return false;
    }
  }

  Server server;
};

// Regression: the number of cores took precedence over OMP_NUM_THREADS.
TEST(ServerThreads, AreAsTheEnvironmentSays) {
  ::setenv("OMP_NUM_THREADS", "3", 1);
  const int before = at::get_num_threads();
  at::set_num_threads(3);  // LibTorch does this itself if the variable is set at the start
  {
    testing::RawSocket taken;
    const ClusterSpec spec({{"worker", {"127.0.0.1:1"}}, {"ps", {taken.listen()}}});
    EXPECT_THROW(Server(SimpleResolver(spec, {.task_type = "ps", .task_id = 0}),
                        {.job_id = kJob, .handle_signals = false}),
                 Error);  // the address is taken; the threads are set before
  }
  EXPECT_EQ(at::get_num_threads(), 3);
  at::set_num_threads(before);
  ::unsetenv("OMP_NUM_THREADS");
}

// Regression: where a variable of Slurm that was not set made it empty, each task of a host took
// all cores.
TEST(ServerThreads, AnEmptyVariableIsNone) {
  ::setenv("OMP_NUM_THREADS", "", 1);
  const int before = at::get_num_threads();
  const int other = before + 5;
  at::set_num_threads(other);
  {
    testing::RawSocket taken;
    const ClusterSpec spec({{"worker", {"127.0.0.1:1"}}, {"ps", {taken.listen()}}});
    EXPECT_THROW(Server(SimpleResolver(spec, {.task_type = "ps", .task_id = 0}),
                        {.job_id = kJob, .handle_signals = false}),
                 Error);
  }
  EXPECT_NE(at::get_num_threads(), other);
  at::set_num_threads(before);
  ::unsetenv("OMP_NUM_THREADS");
}

class UnusedServer : public ServerTest {
 protected:
  UnusedServer()
      : ServerTest({.job_id = kJob,
                    .end_when_unused = std::chrono::milliseconds(1),
                    .handle_signals = false}) {}
};

// Launchers such as srun wait for all tasks, also for servers that wait for another chief.
TEST_F(UnusedServer, EndsWhenTheLastTaskHasLeft) {
  std::optional<rpc::Connection> chief = connect(7);
  std::future<int> code = std::async(std::launch::async, [this] { return server.join(); });
  chief.reset();
  EXPECT_EQ(code.get(), 0);
}

TEST_F(ServerTest, TheTimeUntilItIsUnusedIsANumberOfSeconds) {
  const auto make = [](Duration end_when_unused) {
    Server(SimpleResolver(ClusterSpec({{"worker", {"127.0.0.1:1"}}, {"ps", {free_address()}}}),
                          {.task_type = "ps", .task_id = 0}),
           {.job_id = kJob, .end_when_unused = end_when_unused, .handle_signals = false});
  };
  EXPECT_THAT([&] { make(std::chrono::seconds(-1)); },
              throws_error(ErrorCode::invalid_argument, "end_when_unused >= 0 s, got -1 s"));
  for (const char* const wrong : {"soon", "1.5", "-1", "9999999999"}) {
    ::setenv("COHORT_END_WHEN_UNUSED", wrong, 1);
    EXPECT_THAT([&] { make(Duration::zero()); },
                throws_error(ErrorCode::invalid_argument, std::string("got '") + wrong + "'"));
  }
  ::setenv("COHORT_END_WHEN_UNUSED", "30", 1);
  EXPECT_NO_THROW(make(Duration::zero()));
  ::unsetenv("COHORT_END_WHEN_UNUSED");
}

class ServerMetrics : public ServerTest {
 protected:
  ServerMetrics()
      : ServerTest(
            {.job_id = kJob, .serves_metrics = true, .hot_rows = 1, .handle_signals = false}) {}
  std::string get(const std::string& path) {
    testing::RawSocket socket = testing::RawSocket::connected(server.address());
    socket.write("GET " + path + " HTTP/1.1\r\nHost: localhost\r\n\r\n");
    return socket.read_all();
  }
};

TEST_F(ServerMetrics, CountRequestsByVariableAndFindHotRows) {
  shake(7);
  client(7)->create_variables(
      {{1, "table", {at::kFloat, {{8, 2}}}, true}, {2, "b", {at::kFloat, {{3}}}, true}},
      patience());
  const rpc::Connection coordinator = connect(7);
  rpc::PullRequest pull{{1, 2}};
  pull.row_ids.push_back(at::tensor({6, 6, 3}, at::kLong));
  coordinator.data->call(rpc::to_frame(std::move(pull)), patience(), "pulling");
  rpc::PushRequest push;
  push.effects.push_back(internal::write_effect(rpc::Effect::Kind::scatter_add, at::ones({2, 2}),
                                                at::tensor({6, 1}, at::kLong)));
  push.effects.back().variable = 1;
  const std::uint64_t pushed = push.effects.back().bytes();
  coordinator.data->call(rpc::to_frame(std::move(push)), patience(), "pushing");
  const std::string page = get("/metrics");
  ASSERT_TRUE(page.starts_with("HTTP/1.1 200 OK\r\n")) << page;
  const testing::MetricsParser metrics(page.substr(page.find("\r\n\r\n") + 4));
  const auto value = [&](const std::string& name, testing::MetricsParser::Labels labels = {}) {
    labels.emplace("task", "ps:0");
    return metrics.value("cohort_" + name, labels);
  };
  const testing::MetricsParser::Labels table = {{"variable", "table"}};
  EXPECT_EQ(value("variables"), 2);
  EXPECT_EQ(value("variable_bytes"), 76);
  EXPECT_EQ(value("variable_pulls_total", table), 1);
  EXPECT_EQ(value("variable_pulled_bytes_total", table), 24);
  EXPECT_EQ(value("variable_pulled_rows_total", table), 3);
  EXPECT_EQ(value("variable_pushes_total", table), 1);
  EXPECT_EQ(value("variable_pushed_bytes_total", table), static_cast<double>(pushed));
  EXPECT_EQ(value("variable_pushed_rows_total", table), 2);
  EXPECT_EQ(value("variable_hot_row", {{"variable", "table"}, {"row", "6"}}), 3);
  EXPECT_EQ(value("variable_pulled_bytes_total", {{"variable", "b"}}), 12);
  EXPECT_EQ(value("variable_pulled_rows_total", {{"variable", "b"}}), 0);
  EXPECT_EQ(value("pulled_bytes_total"), 36);
  EXPECT_EQ(server.health().by_variable.at(0).name, "table") << "the busiest one first";
}

TEST_F(ServerMetrics, OtherPagesAreNotThere) {
  EXPECT_TRUE(get("/").starts_with("HTTP/1.1 404 Not Found\r\n"));
  EXPECT_TRUE(connect(7).data->is_open()) << "the port is that of the job";
}

TEST_F(ServerTest, MetricsAreNotServedUnlessItIsWanted) {
  testing::RawSocket socket = testing::RawSocket::connected(server.address());
  socket.write("GET /metrics HTTP/1.1\r\n\r\n");
  EXPECT_EQ(socket.read_all(), "");
}

TEST_F(ServerTest, TheNumberOfHotRowsIsLimited) {
  const auto make = [](int hot_rows) {
    Server(SimpleResolver(ClusterSpec({{"worker", {"127.0.0.1:1"}}, {"ps", {free_address()}}}),
                          {.task_type = "ps", .task_id = 0}),
           {.job_id = kJob, .hot_rows = hot_rows, .handle_signals = false});
  };
  EXPECT_THAT([&] { make(-1); }, throws_error(ErrorCode::invalid_argument,
                                              "ServerOptions::hot_rows of 0 to 1000, got -1"));
  EXPECT_THAT([&] { make(1001); }, throws_error(ErrorCode::invalid_argument, "got 1001"));
}

TEST_F(ServerTest, WhoHasNotShakenHandsIsRefusedEachCall) {
  shake(7);
  for (const auto& one : calls()) {
    EXPECT_THAT([&] { one.second(*client(0)); },
                throws_error(ErrorCode::failed_precondition, "the handshake comes first"))
        << one.first;
  }
  EXPECT_FALSE(has_variable(7));
  EXPECT_NO_THROW(client(7)->health(patience())) << "it was shut down";
}

// Regression: the ids were small numbers, so those of the next coordinator were the same.
TEST_F(ServerTest, ACoordinatorWhosePlaceIsTakenIsRefusedEachCall) {
  const auto first = client(7);
  shake(7);
  shake(9);
  for (const auto& one : calls()) {
    EXPECT_THAT([&] { one.second(*first); },
                throws_error(ErrorCode::aborted, "another coordinator took its place"))
        << one.first;
  }
  EXPECT_FALSE(has_variable(9));
  EXPECT_NO_THROW(client(9)->health(patience())) << "it was shut down";
}

// Regression: the error told a stranger the job id and the versions, which it could then claim to
// have.
TEST_F(ServerTest, ACallerOfAnotherJobHearsNeitherJobNorVersions) {
  rpc::Identity other = identity(7, "theirs");
  other.torch_version = "0.4.1";
  const auto stranger = client(7);
  try {
    stranger->handshake({.caller = other, .expected_task = "ps:1", .coordinator_incarnation = 7},
                        patience());
    ADD_FAILURE() << "was not refused";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::failed_precondition);
    const std::string text = error.message();
    EXPECT_NE(text.find("'theirs'"), std::string::npos) << text;
    for (const std::string& secret : {std::string(kJob), identity(7).torch_version})
      EXPECT_EQ(text.find(secret), std::string::npos) << text;
  }
}

TEST_F(ServerTest, ACallerOfTheJobHearsWhichVersionDiffers) {
  rpc::Identity other = identity(7);
  other.torch_version = "0.4.1";
  EXPECT_THAT(
      [&] {
        client(7)->handshake(
            {.caller = other, .expected_task = "ps:0", .coordinator_incarnation = 7}, patience());
      },
      throws_error(ErrorCode::failed_precondition,
                   "LibTorch 0.4.1, this process " + identity(7).torch_version));
}

TEST_F(ServerTest, AGreetingOfAnotherJobHearsNothingOfOurs) {
  shake(7);
  const auto requester = rpc::Requester::connect(
      rpc::backend_of("stream"),
      {.address = server.address(), .peer = "ps:0", .deadline = patience()}, {}, {});
  EXPECT_THAT(
      [&] {
        requester->call(rpc::to_frame(rpc::Hello{"chief:0", "theirs", 7, 0}), patience(), "hello");
      },
      throws_error(ErrorCode::failed_precondition, "got one of job 'theirs'; give every task"));
}

TEST_F(ServerTest, ACoordinatorWhosePlaceIsTakenDoesNotTakeItBack) {
  shake(7);
  shake(9);
  EXPECT_THAT([&] { shake(7, true); },
              throws_error(ErrorCode::aborted, "another coordinator took its place"));
  client(9)->create_variables({{1, "v", {at::kFloat, {{2}}}, true}}, patience());
  EXPECT_TRUE(has_variable(9));
}

// Regression: after a restart of the task, an earlier start that had been stopped reconnected
// first. The later start was then told that it was replaced, and ended.
TEST_F(ServerTest, ALaterStartTakesARestartedTaskFromAnEarlierOne) {
  shake(7, true);
  EXPECT_THAT([&] { client(9)->release({1}, patience()); },
              throws_error(ErrorCode::failed_precondition, "the handshake comes first"));
  EXPECT_EQ(shake(9, true).start_order, 9U);
  EXPECT_NO_THROW(client(9)->release({1}, patience()));
  EXPECT_THAT([&] { shake(7, true); },
              throws_error(ErrorCode::aborted, "another coordinator took its place"));
  EXPECT_THAT([&] { client(7)->release({1}, patience()); },
              throws_error(ErrorCode::aborted, "another coordinator took its place"));
}

TEST_F(ServerTest, ASuccessorIsTheLaterStartWhateverItsClockSays) {
  connect(9).data->leave();
  EXPECT_EQ(shake(7).start_order, 10U);
  EXPECT_THAT([&] { shake(9, true); },
              throws_error(ErrorCode::aborted, "another coordinator took its place"));
  EXPECT_EQ(shake(7, true).start_order, 10U);
}

// Regression: of two coordinators that started at once, each displaced the other at a task where it
// came second, since one that had not opened its channel yet counted as ended. So both ended.
TEST_F(ServerTest, AnEarlierStartDoesNotDisplaceOneThatIsStarting) {
  shake(9);
  std::future<void> earlier = std::async(std::launch::async, [&] {
    EXPECT_THAT([&] { shake(7); }, throws_error(ErrorCode::aborted, ""));
  });
  const rpc::Connection later = connect(9);  // before or after the earlier one comes
  earlier.get();
  EXPECT_NO_THROW(later.control->release({1}, patience()));
}

TEST_F(ServerTest, ALaterStartDisplacesOneThatIsStarting) {
  shake(7);
  EXPECT_EQ(shake(9).start_order, 9U);
  EXPECT_THAT([&] { connect(7); },
              throws_error(ErrorCode::aborted, "another coordinator took its place"));
}

// Regression: it was refused, because the other one answered; at another task it was the other way
// round.
TEST_F(ServerTest, WhoHasTheFirstTaskIsNotRefusedForAnEarlierStartThatAnswers) {
  const rpc::Connection earlier = connect(7);
  EXPECT_THAT([&] { shake(9); }, throws_error(ErrorCode::aborted, "expected one coordinator"));
  EXPECT_EQ(shake_with_first_task(9).start_order, 9U);
  EXPECT_THAT([&] { earlier.control->release({1}, patience()); },
              throws_error(ErrorCode::aborted, "another coordinator took its place"));
}

TEST_F(ServerTest, WhoHadTheFirstTaskDoesNotDisplaceALaterStartThatAnswers) {
  const rpc::Connection later = connect(9);
  EXPECT_THAT([&] { shake_with_first_task(7); },
              throws_error(ErrorCode::aborted, "another coordinator took its place"));
  EXPECT_NO_THROW(later.control->release({1}, patience()));
}

// The first task may have been restarted since, and so may not have told the new start the number.
TEST_F(ServerTest, WhoHasTheFirstTaskFollowsAStartThatHasEndedWhateverItsClockSays) {
  connect(9).data->leave();
  EXPECT_EQ(shake_with_first_task(7).start_order, 10U);
}

// Regression: without a warning, each pipeline of the coordinator failed later, on this task only.
TEST_F(ServerTest, ADataFolderThatIsMissingIsSaidAtTheStart) {
  std::string log;
  set_log_sink([&](LogLevel, std::string_view line) { log += line; });
  ::setenv("COHORT_DATA_DIRS", (::testing::TempDir() + ":/no/such/folder").c_str(), 1);
  const ClusterSpec spec({{"worker", {"127.0.0.1:1"}}, {"ps", {free_address()}}});
  const Server started(SimpleResolver(spec, {.task_type = "ps", .task_id = 0}),
                       {.handle_signals = false});
  ::unsetenv("COHORT_DATA_DIRS");
  set_log_sink(nullptr);
  EXPECT_NE(log.find("COHORT_DATA_DIRS"), std::string::npos) << log;
  EXPECT_NE(log.find("got '/no/such/folder'"), std::string::npos) << log;
  EXPECT_EQ(log.find(::testing::TempDir()), std::string::npos) << log;
}

// Regression: the message named the same port twice.
TEST_F(ServerTest, ATakenPortIsSaidOnce) {
  const ClusterSpec spec({{"worker", {"127.0.0.1:1"}}, {"ps", {server.address()}}});
  try {
    const Server second(SimpleResolver(spec, {.task_type = "ps", .task_id = 0}),
                        {.handle_signals = false});
    ADD_FAILURE() << "it serves";
  } catch (const Error& error) {
    EXPECT_EQ(exit_code_of(error), 75) << "a supervisor starts it again";
    const std::size_t first = error.message().find("which is taken");
    ASSERT_NE(first, std::string::npos) << error.message();
    EXPECT_EQ(error.message().find("which is taken", first + 1), std::string::npos)
        << error.message();
    // Regression: it spoke only of a port to somebody who had started two tasks with one index.
    EXPECT_NE(error.message().find("two have the same index in TF_CONFIG"), std::string::npos)
        << error.message();
  }
}

// Regression: the log did not show which coordinator a server works for.
TEST_F(ServerTest, ANewCoordinatorHasALine) {
  std::vector<std::string> lines;
  set_log_level(LogLevel::info);
  set_log_sink([&](LogLevel, std::string_view line) { lines.emplace_back(line); });
  shake(5);
  shake(5);
  set_log_sink(nullptr);
  set_log_level(LogLevel::warn);
  ASSERT_EQ(lines.size(), 1U);
  EXPECT_NE(lines[0].find("coordinator chief:0 at 127.0.0.1:"), std::string::npos) << lines[0];
}

TEST_F(ServerTest, AWorkerOfAnEarlierCoordinatorIsRefusedTheHandshake) {
  shake(7);
  shake(9);
  const auto worker = client(7);
  const rpc::HandshakeRequest request{.caller = identity(3),  // its own start is another
                                      .expected_task = "ps:0",
                                      .coordinator_incarnation = 7};
  EXPECT_THAT([&] { worker->handshake(request, patience()); },
              throws_error(ErrorCode::aborted, "another coordinator took its place"));
}

// Workers get the error too, when the coordinator's own connections are closed already.
TEST_F(ServerTest, TheConnectionsOfAnEarlierCoordinatorAreClosed) {
  testing::Promised<bool> is_closed;
  shake(7);
  const rpc::Connection worker =
      rpc::connect_task({.address = server.address(),
                         .task = "ps:0",
                         .caller = rpc::identity_of_process("worker:0", kJob, 3),
                         .coordinator_incarnation = 7,
                         .deadline = patience(),
                         .on_closed = [&](const Error&) { is_closed.set(true); }});
  shake(9);
  is_closed.wait();
}

// Regression: a server behind a forwarded port was named with its own address, which nobody could
// reach.
TEST_F(ServerTest, FramesGoToTheAddressThatWasDialled) {
  testing::FaultyProxy forward;
  forward.set_target(server.address());
  forward.arm({.kind = testing::Fault::Kind::delay, .part = testing::Fault::Part::header});
  const rpc::Connection connection = rpc::connect_task({.address = forward.address(),
                                                        .task = "ps:0",
                                                        .caller = identity(5),
                                                        .coordinator_incarnation = 5,
                                                        .deadline = patience()});
  EXPECT_TRUE(forward.has_happened());
}

class PeekTest : public ServerTest {
 protected:
  PeekTest() {
    gate = &gated;
    chief = connect(7);
    const Dataset dataset = Dataset::range(5).map(Function::registered("server_test.gated"));
    chief.control->create_iterator({.id = 1, .dataset = dataset.serialize()}, patience());
  }
  ~PeekTest() override {
    gated.may_go.set(true);
    server.stop();
    gate = nullptr;
  }
  void peek(std::uint64_t resource, Promised<rpc::Answer>& answer) {
    chief.data->request(rpc::to_frame(rpc::PeekRequest{resource, 2}),
                        [&](rpc::Answer got) { answer.set(std::move(got)); });
  }

  Gate gated;
  Promised<rpc::Answer> peeked;
  rpc::Connection chief;
};

// Regression: a slow pipeline blocked the connection, and all other messages on it.
TEST_F(PeekTest, APeekHoldsUpNothingElse) {
  peek(1, peeked);
  gated.is_entered.wait();
  chief.control->create_variables({{1, "v", {at::kFloat, {{2}}}, true}}, patience());
  EXPECT_NO_THROW(
      chief.data->call(rpc::to_frame(rpc::PullRequest{{1}}), patience(), "pulling a variable"));
  EXPECT_FALSE(peeked.is_set());
  gated.may_go.set(true);
  const rpc::Answer answer = peeked.wait();
  ASSERT_TRUE(std::holds_alternative<rpc::Frame>(answer));
  const rpc::PeekReply reply = rpc::message_of<rpc::PeekReply>(std::get<rpc::Frame>(answer));
  ASSERT_EQ(reply.tensors.size(), 2U);
  EXPECT_EQ(reply.tensors[0].item<std::int64_t>(), 0);
  EXPECT_EQ(reply.tensors[1].item<std::int64_t>(), 1);
}

TEST_F(PeekTest, WhatIsNotThereIsAnError) {
  peek(2, peeked);
  const rpc::Answer answer = peeked.wait();
  ASSERT_TRUE(std::holds_alternative<Error>(answer));
  EXPECT_EQ(std::get<Error>(answer).code(), ErrorCode::not_found);
}

// Regression: iterators that a coordinator had dropped while it was away kept their buffers, and a
// draw that waited for a program blocked the worker for ever.
TEST_F(PeekTest, ACoordinatorThatComesBackBeginsWithoutIterators) {
  const rpc::Connection old = std::exchange(chief, connect(7));  // the old one is still open
  peek(1, peeked);
  const rpc::Answer answer = peeked.wait();
  ASSERT_TRUE(std::holds_alternative<Error>(answer));
  EXPECT_EQ(std::get<Error>(answer).code(), ErrorCode::not_found);
}

TEST_F(PeekTest, TheIteratorsOfACoordinatorThatHasGoneEnd) {
  peek(1, peeked);
  gated.is_entered.wait();
  chief.data->close();
  gated.may_go.set(true);
  const Deadline deadline = patience();
  rpc::Answer answer;
  do {  // the server learns of the end later
    chief = connect(7);
    Promised<rpc::Answer> again;
    peek(1, again);
    answer = again.wait();
  } while (!std::holds_alternative<Error>(answer) && !deadline.has_expired());
  ASSERT_TRUE(std::holds_alternative<Error>(answer));
  EXPECT_EQ(std::get<Error>(answer).code(), ErrorCode::not_found);
}

TEST_F(PeekTest, TheEndOfTheServerIsToldOfAPeekThatDoesNotEnd) {
  peek(1, peeked);
  gated.is_entered.wait();
  EXPECT_FALSE(server.stop());
  gated.may_go.set(true);
  const Deadline deadline = patience();
  while (server::IteratorTable::left_behind() > 0 && !deadline.has_expired())
    std::this_thread::yield();
  EXPECT_EQ(server::IteratorTable::left_behind(), 0);
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
// It stayed, and every coordinator found it silent.
TEST_F(ServerTest, EndsItselfIfItCannotStartThreadsForItsFirstConnection) {
  const testing::WithoutThreads none;
  auto visitor = testing::RawSocket::connected(server.address());
  visitor.write("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
  EXPECT_THAT([this] { server.join(); },
              throws_error(ErrorCode::resource_exhausted,
                           "[server.serve] expected ps:0 to have threads for its connections"));
}
#endif

}  // namespace
}  // namespace cohort
