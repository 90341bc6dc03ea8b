// SPDX-License-Identifier: Apache-2.0
// Mistakes that exist from the start. In each case the program ends by itself, with an exit code
// and a message that says what to change, and leaves no process running.
#include <ATen/ops/ones.h>
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "cohort/coordinator/cluster_coordinator.h"
#include "cohort/core/log.h"
#include "cohort/rpc/connection.h"
#include "cohort/rpc/messages.h"
#include "cohort/server/server.h"
#include "cohort/testing/await_server.h"
#include "cohort/testing/cluster/test_cluster.h"
#include "cohort/testing/running_program.h"
#include "cohort/testing/throws_error.h"

namespace cohort {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::Each;
using ::testing::HasSubstr;
using testing::RunningProgram;
using testing::TestCluster;
using testing::throws_error;

namespace fs = std::filesystem;
using Words = std::vector<std::string>;

const std::string kDigits = COHORT_SOURCE_DIR "/examples/data/digits";

class BadInput : public testing::LeavesNoProcess {
 protected:
  void expect_end(RunningProgram& program, int code, const Words& words) {
    EXPECT_EQ(program.wait().to_string(), "exit code " + std::to_string(code));
    for (const std::string& word : words) EXPECT_THAT(program.err(), HasSubstr(word));
  }
  void expect_end(const Words& command, const std::string& tf_config, int code,
                  const Words& words) {
    RunningProgram program(command, {{"TF_CONFIG", tf_config}});
    expect_end(program, code, words);
  }
  static Words server() { return {COHORT_COMMAND, "server"}; }
  static Words example(const std::string& data_dir = kDigits) {
    return {EXAMPLE_PROGRAM, "--data", "digits", "--data-dir", data_dir, "--epochs", "1"};
  }
};

// These options have nothing to do with addresses, so the errors give no advice about them.
TEST_F(BadInput, AServersOptionsAreCheckedBeforeItListens) {
  const SimpleResolver resolver(ClusterSpec{{"worker", {"127.0.0.1:2"}}, {"ps", {"127.0.0.1:3"}}},
                                {.task_type = "ps", .task_id = 0});
  const auto start = [&](const ServerOptions& options) {
    return [&resolver, options] { Server server(resolver, options); };
  };
  EXPECT_THAT(start({.backends = {}}), throws_error(ErrorCode::invalid_argument, "backends"));
  EXPECT_THAT(start({.backends = {"pigeon"}}),
              throws_error(ErrorCode::unimplemented,
                           "got 'pigeon'; correct the name in ServerOptions::backends"));
  EXPECT_THAT(start({.data_port = 65536}),
              throws_error(ErrorCode::invalid_argument, "data_port of 0 to 65535, got 65536"));
  EXPECT_THAT(start({.backends = {"grpc"}, .data_port = 5}),
              throws_error(ErrorCode::invalid_argument, "\"stream\" for data port 5"));
  EXPECT_THAT(start({.data_port = 3}),
              throws_error(ErrorCode::invalid_argument, "data_port beside the port of ps:0"));
  EXPECT_THAT(start({.data_timeout = Duration::zero()}),
              throws_error(ErrorCode::invalid_argument, "data_timeout"));
}

// --- TF_CONFIG -----------------------------------------------------------------------------------

struct BadConfig {
  const char* name;
  const char* tf_config;
  Words words;  // argument, value, remedy
};

void PrintTo(const BadConfig& config, std::ostream* stream) { *stream << config.name; }

class BadTfConfig : public BadInput, public ::testing::WithParamInterface<BadConfig> {};

TEST_P(BadTfConfig, EndsTheStandardServerAndTheExample) {
  RunningProgram standard(server(), {{"TF_CONFIG", GetParam().tf_config}});
  RunningProgram program(example(), {{"TF_CONFIG", GetParam().tf_config}});
  expect_end(standard, 64, GetParam().words);
  expect_end(program, 64, GetParam().words);
}

const BadConfig kBadConfigs[] = {
    {"Empty", "", {"TF_CONFIG", "got \"\"", "set it as"}},
    {"NoJson", "{cluster", {"TF_CONFIG", "got \"{cluster\"", "set it as"}},
    {"NoObject", "[1]", {"TF_CONFIG", "got \"[1]\"", "set it as"}},
    {"ClusterOfAWrongType",
     R"({"cluster": 3, "task": {"type": "worker", "index": 0}})",
     {"TF_CONFIG key cluster", "got \"3\"", "write {\"worker\""}},
    {"JobOfAWrongType",
     R"({"cluster": {"worker": ["127.0.0.1:2"], "ps": 3}, "task": {"type": "worker", "index": 0}})",
     {"TF_CONFIG key cluster.ps", "got \"3\"", "write {\"worker\""}},
    {"AddressOfAWrongType",
     R"({"cluster": {"worker": [2], "ps": ["127.0.0.1:3"]}, "task": {"type": "worker", "index": 0}})",
     {"TF_CONFIG key cluster.worker[0]", "got \"2\"", "write {\"worker\""}},
    {"TaskOfAWrongType",
     R"({"cluster": {"worker": ["127.0.0.1:2"], "ps": ["127.0.0.1:3"]}, "task": ["worker", 0]})",
     {"TF_CONFIG key task", R"(got "["worker",0]")", "set it as"}},
    {"IndexOfAWrongType",
     R"({"cluster": {"worker": ["127.0.0.1:2"], "ps": ["127.0.0.1:3"]},
         "task": {"type": "worker", "index": "first"}})",
     {"TF_CONFIG key task.index", "got \"first\"", "write \"index\": 0"}},
    {"TypeMissing",
     R"({"cluster": {"worker": ["127.0.0.1:2"], "ps": ["127.0.0.1:3"]},
         "task": {"index": 0}})",
     {"TF_CONFIG key task", "\"index\":0", "set it as"}},
    {"TypeMisspelled",
     R"({"cluster": {"worker": ["127.0.0.1:2"], "ps": ["127.0.0.1:3"]},
         "task": {"typ": "worker", "index": 0}})",
     {"TF_CONFIG key task", "got \"typ\"", "did you mean 'type'"}},
    {"TypeUnknown",
     R"({"cluster": {"worker": ["127.0.0.1:2"], "ps": ["127.0.0.1:3"]},
         "task": {"type": "wroker", "index": 0}})",
     {"own task's type", "got \"wroker\"", "set task.type"}},
    {"NoPs",
     R"({"cluster": {"worker": ["127.0.0.1:2"]}, "task": {"type": "worker", "index": 0}})",
     {"at least one ps", "got {\"worker\"", "add \"ps\""}},
    {"NoWorker",
     R"({"cluster": {"ps": ["127.0.0.1:3"]}, "task": {"type": "ps", "index": 0}})",
     {"at least one worker", "got {\"ps\"", "add \"worker\""}},
    {"TwiceTheSameAddress",
     R"({"cluster": {"worker": ["127.0.0.1:2"], "ps": ["127.0.0.1:2"]},
         "task": {"type": "ps", "index": 0}})",
     {"ps:0 and worker:0", "got \"127.0.0.1:2\"", "another port"}},
    {"IndexOutOfRange",
     R"({"cluster": {"worker": ["127.0.0.1:2"], "ps": ["127.0.0.1:3"]},
         "task": {"type": "worker", "index": 1}})",
     {"own task worker:1", "got {\"ps\"", "change task.index"}},
    {"AddressOfAnotherHost",
     R"({"cluster": {"worker": ["192.0.2.1:2"], "ps": ["192.0.2.1:3"]},
         "task": {"type": "worker", "index": 0}})",
     {"this machine, got 192.0.2.1:2;", "correct its index or its address", "for worker:0"}},
    {"HostUnknown",  // of a form that needs no name server to be refused
     R"({"cluster": {"worker": ["no-such..host:2"], "ps": ["127.0.0.1:3"]},
         "task": {"type": "worker", "index": 0}})",
     {"this machine, got no-such..host:2 (", "its index or its address", "for worker:0"}},
    {"AddressWithoutPort",
     R"({"cluster": {"worker": ["127.0.0.1:2"], "ps": ["localhost"]},
         "task": {"type": "worker", "index": 0}})",
     {"the address of ps:0", "got \"localhost\"", "correct it in the cluster"}},
};

INSTANTIATE_TEST_SUITE_P(BadInput, BadTfConfig, ::testing::ValuesIn(kBadConfigs),
                         [](const auto& config) { return config.param.name; });

TEST_F(BadInput, ACoordinatorWithAnAddressThatNobodyCanHaveSaysSoAtOnce) {
  for (const char* address : {"localhost", "localhost:0", "localhost:65536", "localhost:http"}) {
    const std::string config = std::string(R"({"cluster": {"worker": ["127.0.0.1:2"], "ps": [")") +
                               address + R"("]}, "task": {"type": "chief", "index": 0}})";
    // The chief is listed, so nothing else is wrong in the cluster.
    const std::string listed = R"({"cluster": {"chief": ["127.0.0.1:1"], )" + config.substr(13);
    expect_end(example(), listed, 64,
               {"the address of ps:0", std::string("got \"") + address + "\"", "TF_CONFIG"});
  }
}

// The server served, although no task ever connects to it.
TEST_F(BadInput, AStandardServerForATaskThatRunsTheProgramEnds) {
  for (const char* type : {"chief", "evaluator"}) {
    const std::string config =
        std::string(R"({"cluster": {"worker": ["127.0.0.1:2"], "ps": ["127.0.0.1:3"], ")") + type +
        R"(": ["127.0.0.1:0"]}, "task": {"type": ")" + type + R"(", "index": 0}})";
    expect_end(server(), config, 64,
               {"a task of job ps or worker", std::string("got \"") + type + "\"",
                "run the program itself", "change task.type"});
  }
}

// --- Tasks that already run, or other tasks than expected ----------------------------------------

// A port on which another program listens.
class TakenPort {
 public:
  TakenPort() : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    EXPECT_EQ(::bind(fd_, reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(::listen(fd_, 1), 0);
    ::getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &size);
    address_ = "127.0.0.1:" + std::to_string(ntohs(address.sin_port));
  }
  ~TakenPort() { ::close(fd_); }
  TakenPort(const TakenPort&) = delete;
  TakenPort& operator=(const TakenPort&) = delete;
  const std::string& address() const { return address_; }

 private:
  int fd_;
  std::string address_;
};

TEST_F(BadInput, ATakenPortEndsTheTask) {
  const TakenPort port;
  const std::string config =
      R"({"cluster": {"worker": [")" + port.address() +
      R"("], "ps": ["127.0.0.1:3"]}, "task": {"type": "worker", "index": 0}})";
  for (const Words& command : {server(), example()}) {
    // It was 64, after which nobody starts it again, though the port may be free by then.
    expect_end(command, config, 75,
               {"free port, got " + port.address(), "another address", "listening for worker:0"});
  }
}

TestCluster small_cluster(Words command = {COHORT_COMMAND, "server"}, Words not_started = {}) {
  return TestCluster({.workers = 1,
                      .ps = 1,
                      .command = std::move(command),
                      .data_dirs = {kDigits},
                      .not_started = std::move(not_started)});
}

float value_of(ClusterCoordinator& coordinator, float value) {
  Function fn([](at::Tensor x) { return x.mul(2); });
  return coordinator.schedule(fn, at::ones({}).mul(value)).fetch().tensor().item<float>();
}

TEST_F(BadInput, ASecondTaskOfOneIdEndsAndTheFirstGoesOn) {
  const TestCluster cluster = small_cluster();
  ParameterServerStrategy strategy(cluster.resolver());
  ClusterCoordinator coordinator(strategy);
  for (const Words& command : {server(), example()}) {
    expect_end(command, cluster.tf_config("worker:0"), 75,
               {"free port", "two have the same index in TF_CONFIG", "listening for worker:0"});
  }
  EXPECT_EQ(value_of(coordinator, 3), 6);
}

TEST_F(BadInput, ASecondCoordinatorEndsAndTheFirstGoesOn) {
  const TestCluster cluster = small_cluster();
  ParameterServerStrategy strategy(cluster.resolver());
  ClusterCoordinator coordinator(strategy);
  // It was 64, after which nobody starts it again.
  expect_end(example(), cluster.tf_config("chief:0"), 75,
             {"expected one coordinator", "second start of chief:0", "end the first",
              "does not answer loses it after 10 s"});
  EXPECT_EQ(value_of(coordinator, 3), 6);
}

TEST_F(BadInput, ACoordinatorFollowsOneThatHasEnded) {
  const TestCluster cluster = small_cluster();
  for (float i = 0; i < 3; ++i) {
    ParameterServerStrategy strategy(cluster.resolver());
    ClusterCoordinator coordinator(strategy);
    EXPECT_EQ(value_of(coordinator, i), 2 * i);
  }
  expect_end(example(), cluster.tf_config("chief:0"), 0, {});
}

// The message names the job that the coordinator expected, but not the job of the other worker.
TEST_F(BadInput, AWorkerOfAnotherJobIsNamed) {
  const TestCluster cluster = small_cluster({COHORT_COMMAND, "server", "--job-id", "yesterday"});
  RunningProgram program(example(), {{"TF_CONFIG", cluster.tf_config("chief:0")}});
  // Regression: the name was a hash.
  expect_end(program, 64,
             {"got one of a job named after its cluster", "give every task the same cluster"});
  EXPECT_EQ(program.err().find("yesterday"), std::string::npos) << program.err();
}

TEST_F(BadInput, ATaskAtTheAddressOfAnotherIsNamed) {
  const TestCluster cluster = small_cluster();
  const ClusterSpec swapped{{"worker", {cluster.spec().task_address("ps", 0)}},
                            {"ps", {cluster.spec().task_address("worker", 0)}}};
  ParameterServerStrategy strategy(SimpleResolver{swapped});
  EXPECT_THAT([&] { ClusterCoordinator coordinator(strategy); },
              throws_error(ErrorCode::failed_precondition, "give every task the same cluster"));
}

// Answers the handshake like a process of another build.
class OtherBuild final : public rpc::ControlService {
 public:
  explicit OtherBuild(rpc::Identity self, std::vector<rpc::Endpoint> endpoints = {})
      : self_(std::move(self)), endpoints_(std::move(endpoints)) {}

  rpc::HandshakeReply handshake(const rpc::HandshakeRequest& request, const rpc::Caller&) override {
    rpc::Identity self = self_;
    self.task = request.expected_task;
    self.job_id = request.caller.job_id;
    return {self, endpoints_};
  }
  TaskHealth health() override { return {}; }
  std::shared_ptr<rpc::CoordinatorSession> session_of(const rpc::Caller&) override {
    return nullptr;
  }
  void shutdown(const rpc::Caller&, std::chrono::milliseconds) override {}

 private:
  rpc::Identity self_;
  const std::vector<rpc::Endpoint> endpoints_;
};

// The message said to start the task, although it ran.
TEST_F(BadInput, ATaskThatAnswersButTakesNoTensorsIsNamedWithThatAddress) {
  const TestCluster cluster = small_cluster({COHORT_COMMAND, "server"}, {"worker:0"});
  OtherBuild service(rpc::identity_of_process("", "", 1), {{"stream", ":1"}});
  const std::string address = cluster.spec().task_address("worker", 0);
  const auto worker = rpc::serve_control(address, service);
  ASSERT_TRUE(testing::await_answer(cluster.spec(), "ps:0")) << cluster.output("ps:0");
  ParameterServerStrategy strategy(cluster.resolver(),
                                   {.cluster = {.timeout = std::chrono::seconds(3)}});
  EXPECT_THAT(
      [&] { ClusterCoordinator coordinator(strategy); },
      throws_error(ErrorCode::unavailable, "at the address for tensors of worker:0 (" + address +
                                               ", for tensors 127.0.0.1:1); control"));
}

class AnotherBuild : public BadInput, public ::testing::WithParamInterface<bool> {
 protected:
  static bool is_protocol() { return GetParam(); }
  static rpc::Identity identity() {
    rpc::Identity self = rpc::identity_of_process("", "", 1);
    (is_protocol() ? self.protocol_version = 99 : 0);
    if (!is_protocol()) self.torch_version = "0.4.1";
    return self;
  }
  static Words words() {
    if (is_protocol()) return {"protocol version 99", "run the same Cohort on every task"};
    return {"LibTorch 0.4.1", "run the same LibTorch on every task"};
  }
};

TEST_P(AnotherBuild, OfAWorkerEndsTheCoordinator) {
  const TestCluster cluster = small_cluster({COHORT_COMMAND, "server"}, {"worker:0"});
  OtherBuild service(identity());
  const auto worker = rpc::serve_control(cluster.spec().task_address("worker", 0), service);
  Words expected = words();
  expected.push_back("worker:0");
  expect_end(example(), cluster.tf_config("chief:0"), 64, expected);
}

TEST_P(AnotherBuild, OfACoordinatorIsRefusedByAServer) {
  const TestCluster cluster = small_cluster();
  rpc::Identity self = identity();
  self.task = "chief:0";
  self.job_id = rpc::default_job_id(cluster.spec().to_json());
  ParameterServerStrategy awaits_start(cluster.resolver());
  { ClusterCoordinator connected(awaits_start); }
  const auto client = rpc::control_client(cluster.spec().task_address("worker", 0), "worker:0");
  EXPECT_THAT(
      [&] {
        client->handshake({self, "worker:0", 1}, Deadline::after(std::chrono::seconds(20)));
      },
      throws_error(ErrorCode::failed_precondition, words()[0]));
}

INSTANTIATE_TEST_SUITE_P(BadInput, AnotherBuild, ::testing::Bool(), [](const auto& is_protocol) {
  return is_protocol.param ? "Protocol" : "Torch";
});

// A hello for another start of the task was accepted.
TEST_F(BadInput, AGreetingForAnotherStartOfATaskIsRefused) {
  const TestCluster cluster = small_cluster();
  ASSERT_TRUE(testing::await_answer(cluster.spec(), "worker:0")) << cluster.output("worker:0");
  const std::string job = rpc::default_job_id(cluster.spec().to_json());
  const rpc::Identity self = rpc::identity_of_process("chief:0", job, 1);
  const Deadline deadline = Deadline::after(std::chrono::seconds(20));
  const auto client = rpc::control_client(cluster.spec().task_address("worker", 0), "worker:0");
  const rpc::HandshakeReply reply = client->handshake({self, "worker:0", 1}, deadline);
  const auto greet = [&](std::uint64_t start) {
    const rpc::Endpoint& endpoint = reply.endpoints.front();
    const auto requester = rpc::Requester::connect(
        rpc::backend_of(endpoint.backend),
        {.address = rpc::address_of(endpoint, cluster.spec().task_address("worker", 0)),
         .peer = "worker:0",
         .deadline = deadline});
    requester->call(rpc::to_frame(rpc::Hello{self.task, job, 1, start}), deadline, "greeting");
  };
  const std::uint64_t start = reply.server.incarnation;
  EXPECT_NO_THROW(greet(start));
  EXPECT_NO_THROW(greet(0)) << "it is not known to the caller";
  EXPECT_THAT([&] { greet(start + 2); },
              throws_error(ErrorCode::failed_precondition,
                           "got one of chief:0 to an earlier one: worker:0 was restarted since"));
}

TEST_F(BadInput, TasksThatNeverAppearAreNamedAndNoOther) {
  TestCluster cluster({.workers = 2,
                       .ps = 2,
                       .command = {COHORT_COMMAND, "server"},
                       .not_started = {"ps:1", "worker:0"}});
  // Waits for the servers, so that a slow start does not disturb the test.
  for (const char* task : {"ps:0", "worker:1"}) {
    ASSERT_TRUE(testing::await_answer(cluster.spec(), task)) << task << " never came up:\n"
                                                             << cluster.output(task);
  }
  ParameterServerStrategy strategy(cluster.resolver(),
                                   {.cluster = {.timeout = std::chrono::seconds(6)}});
  const auto address = [&](const char* job, int index) {
    return std::string(job) + ":" + std::to_string(index) + " (" +
           cluster.spec().task_address(job, index) + ")";
  };
  Words lines;
  set_log_sink([&](LogLevel, std::string_view line) { lines.emplace_back(line); });
  try {
    ClusterCoordinator coordinator(strategy);
    ADD_FAILURE() << "expected an error";
  } catch (const Error& error) {
    EXPECT_EQ(exit_code_of(error), 69);
    EXPECT_THAT(error.message(), HasSubstr("no answer within 6 s from " + address("ps", 1) + ", " +
                                           address("worker", 0) + "; start these tasks"));
    EXPECT_THAT(error.message(), HasSubstr("nobody listens at the address of ps:1, worker:0"));
  }
  set_log_sink(nullptr);
  EXPECT_THAT(lines, Contains(HasSubstr("waiting for ps:1, worker:0")));
}

// The coordinator warned that it waited for tasks, although they only started slowly.
TEST_F(BadInput, ATestClusterIsThereWhenItsServersServe) {
  Words lines;
  set_log_sink([&](LogLevel, std::string_view line) { lines.emplace_back(line); });
  {
    const TestCluster cluster =
        small_cluster({"/bin/sh", "-c", "sleep 4; exec \"$0\" server", COHORT_COMMAND});
    ParameterServerStrategy strategy(cluster.resolver());
    ClusterCoordinator coordinator(strategy);
  }
  set_log_sink(nullptr);
  EXPECT_THAT(lines, ::testing::IsEmpty());
}

// The program waited for a minute without a message.
TEST_F(BadInput, ACoordinatorThatIsOneForWantOfATaskSaysSo) {
  RunningProgram program(example(), {{"TF_CONFIG",
                                      R"({"cluster": {"worker": ["127.0.0.1:2"],
                                                      "ps": ["127.0.0.1:3"]}})"}});
  EXPECT_TRUE(program.await_error("names no task for this process"));
  EXPECT_TRUE(program.await_error("waiting for ps:0, worker:0"));
}

// --- Data ----------------------------------------------------------------------------------------

constexpr char kImages[] = "train-images-idx3-ubyte";
constexpr char kLabels[] = "train-labels-idx1-ubyte";

std::string content(const fs::path& file) {
  std::ifstream stream(file, std::ios::binary);
  std::ostringstream text;
  text << stream.rdbuf();
  return text.str();
}

void write(const fs::path& file, const std::string& text) {
  std::ofstream(file, std::ios::binary | std::ios::trunc) << text;
}

struct BadData {
  const char* name;
  void (*spoil)(const fs::path& folder);
  Words words;
};

void PrintTo(const BadData& data, std::ostream* stream) { *stream << data.name; }

class BadDataFiles : public BadInput, public ::testing::WithParamInterface<BadData> {};

TEST_P(BadDataFiles, EndTheLaunch) {
  const fs::path folder = fs::path(::testing::TempDir()) /
                          ("cohort-" + std::to_string(::getpid()) + "-" + GetParam().name);
  fs::copy(kDigits, folder);
  GetParam().spoil(folder);
  Words command = {COHORT_COMMAND, "launch", "--workers", "1", "--ps", "1", "--data", folder, "--"};
  for (const std::string& word : example(folder)) command.push_back(word);
  RunningProgram launch(command);
  expect_end(launch, 64, GetParam().words);
  EXPECT_THAT(launch.err(), HasSubstr(folder.string()));
  fs::remove_all(folder);
}

const BadData kBadData[] = {
    {"Missing",
     [](const fs::path& folder) { fs::remove(folder / kLabels); },
     {kLabels, "No such file", "correct the path"}},
    {"Truncated",
     [](const fs::path& folder) { fs::resize_file(folder / kImages, 5000); },
     {kImages, "got 4984 bytes", "truncated", "fetch or copy it again"}},
    {"TruncatedInItsHeader",
     [](const fs::path& folder) { fs::resize_file(folder / kImages, 7); },
     {kImages, "got 7", "truncated", "fetch or copy it again"}},
    {"Empty",
     [](const fs::path& folder) { fs::resize_file(folder / kLabels, 0); },
     {kLabels, "got 0 bytes", "fetch or copy it again"}},
    {"OfAWrongMagic",
     [](const fs::path& folder) { write(folder / kImages, "PNG" + content(folder / kImages)); },
     {kImages, "magic", "got 504e4700", "give the path of an IDX file"}},
    {"Compressed",
     [](const fs::path& folder) {
       write(folder / kImages, "\x1f\x8b\x08" + content(folder / kImages));
     },
     {kImages, "got 1f8b0800", "unpack it first"}},
    {"WithAWrongCountOfLabels",
     [](const fs::path& folder) {
       fs::copy(folder / "t10k-labels-idx1-ubyte", folder / kLabels,
                fs::copy_options::overwrite_existing);
     },
     {kLabels, "expected 1437 labels", "got 360", "from one set"}},
    {"Swapped",
     [](const fs::path& folder) {
       fs::rename(folder / kLabels, folder / "kept");
       fs::rename(folder / kImages, folder / kLabels);
       fs::rename(folder / "kept", folder / kImages);
     },
     {kLabels, "expected one dimension", "are .images and .labels swapped?"}},
};

INSTANTIATE_TEST_SUITE_P(BadInput, BadDataFiles, ::testing::ValuesIn(kBadData),
                         [](const auto& data) { return data.param.name; });

// Bad data was found only after all servers had started.
TEST_F(BadInput, BadDataIsFoundBeforeAnyOtherTaskIsThere) {
  const char* nobody = R"({"cluster": {"chief": ["127.0.0.1:1"], "worker": ["127.0.0.1:2"],
                                       "ps": ["127.0.0.1:3"]},
                           "task": {"type": "chief", "index": 0}})";
  expect_end(example("/no/such/folder"), nobody, 64, {"/no/such/folder", "correct the path"});
  Words command = example();
  command.insert(command.end(), {"--batch", "2000"});
  expect_end(command, nobody, 64, {"--batch of at most 1437", "got --batch 2000"});
}

// The program ran 0 steps, and its progress bar caused the error.
TEST_F(BadInput, ABatchOfMoreThanAllImagesEndsTheLaunch) {
  Words command = {COHORT_COMMAND, "launch", "--workers", "1", "--ps", "1",
                   "--data",       kDigits,  "--"};
  for (const std::string& word : example()) command.push_back(word);
  command.insert(command.end(), {"--batch", "2000"});
  RunningProgram launch(command);
  expect_end(launch, 64, {"--batch of at most 1437", "got --batch 2000"});
}

TEST_F(BadInput, AFolderThatTheServersWereNotGivenEndsTheLaunch) {
  Words command = {COHORT_COMMAND, "launch", "--workers", "1", "--ps", "1", "--"};
  for (const std::string& word : example()) command.push_back(word);
  RunningProgram launch(command);
  expect_end(launch, 64, {kDigits, "data directories (none was given)", "--data DIR"});
}

// --- Functions -----------------------------------------------------------------------------------

TEST_F(BadInput, AFunctionOfTwoStructuresIsRefusedAtItsTrace) {
  const TestCluster cluster = small_cluster();
  ParameterServerStrategy strategy(cluster.resolver());
  ClusterCoordinator coordinator(strategy);
  int calls = 0;
  Function changing(
      [&](at::Tensor x) {
        return ++calls % 2 == 1 ? Nest::map({{"loss", x}}) : Nest::map({{"loss", x}, {"more", x}});
      },
      {.name = "changing"});
  EXPECT_THAT([&] { coordinator.schedule(changing, at::ones({2})); },
              throws_error(ErrorCode::invalid_argument, "'changing' on its second trace"));
  EXPECT_EQ(value_of(coordinator, 3), 6);
}

TEST_F(BadInput, AFunctionOfAnotherStructureForAnotherElementIsRefused) {
  const TestCluster cluster = small_cluster();
  ParameterServerStrategy strategy(cluster.resolver());
  ClusterCoordinator coordinator(strategy);
  auto data = coordinator.create_per_worker_dataset(Dataset::range(7).batch(4));
  auto iterator = data.iterator();
  Function step(
      [](Iterator& it) {
        const at::Tensor x = it.next<at::Tensor>();
        return x.size(0) == 4 ? Nest(x) : Nest::tuple({x, x});
      },
      {.name = "step"});
  EXPECT_THAT(
      [&] {
        for (int i = 0; i < 2; ++i) coordinator.schedule(step, iterator);
        coordinator.join();
      },
      throws_error(ErrorCode::invalid_argument, "'step' for another element"));
  coordinator.join();
  EXPECT_EQ(value_of(coordinator, 3), 6);
}

}  // namespace
}  // namespace cohort
