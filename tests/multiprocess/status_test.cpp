// SPDX-License-Identifier: Apache-2.0
// `cohort status` with real processes: servers that run, are killed or are stopped, and a
// coordinator in this process.
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "cohort/coordinator/cluster_coordinator.h"
#include "cohort/function/inspection.h"
#include "cohort/rpc/connection.h"
#include "cohort/testing/await_server.h"
#include "cohort/testing/cluster/test_cluster.h"
#include "cohort/testing/running_program.h"

namespace cohort {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using testing::TestCluster;

class Status : public testing::LeavesNoProcess {
 protected:
  struct Outcome {
    std::string exit;
    json report;
    std::string out;
    std::string err;

    const json& task(const std::string& name) const {
      static const json none;
      for (const json& each : report["tasks"]) {
        if (each["task"] == name) return each;
      }
      ADD_FAILURE() << "no task " << name << " in " << report.dump();
      return none;
    }
  };

  static Outcome status(std::vector<std::string> options, const std::string& tf_config) {
    options.insert(options.begin(), {COHORT_COMMAND, "status"});
    testing::RunningProgram program(options, {{"TF_CONFIG", tf_config}});
    const std::string exit = program.wait().to_string();
    return {exit, json::parse(program.out(), nullptr, false), program.out(), program.err()};
  }
  Outcome status(std::vector<std::string> options = {"--json"}) const {
    return status(std::move(options), cluster.tf_config("worker:0"));
  }
  std::string address_of(const std::string& task) const {
    const TaskId id = TaskId::parse(task);
    return cluster.spec().task_address(id.job, id.index);
  }
  void await_servers() const {
    for (const char* task : {"ps:0", "worker:0", "worker:1"})
      ASSERT_TRUE(testing::await_answer(cluster.spec(), task)) << task;
  }

  TestCluster cluster{{.workers = 2, .command = {COHORT_COMMAND, "server"}}};
};

// Adds a coordinator with a variable and two functions.
class StatusOfAJob : public Status {
 protected:
  ParameterServerStrategy strategy{cluster.resolver()};
  ClusterCoordinator coordinator{strategy};
  const Variable sum = strategy.variable("sum", at::zeros({}), {.is_trainable = false});
  const Function step{[this] { Variable(sum).assign_add(at::ones({})); }};
};

TEST_F(StatusOfAJob, IsZeroWhereAllAnswer) {
  for (int i = 0; i < 10; ++i) coordinator.schedule(step);
  coordinator.join();
  const Outcome outcome = status();
  EXPECT_EQ(outcome.exit, "exit code 0") << outcome.err;
  EXPECT_EQ(outcome.report["exit_code"], 0);
  EXPECT_EQ(outcome.report["missing"], json::array());
  ASSERT_EQ(outcome.report["tasks"].size(), 4U);
  const json& own = outcome.task("chief:0")["health"]["coordinator"];
  EXPECT_EQ(own["completed"], 10);
  EXPECT_EQ(own["queued"], 0);
  EXPECT_EQ(own["in_flight"], 0);
  EXPECT_EQ(own["traces"], 1);
  EXPECT_EQ(own["workers"].size(), 2U);
  int run = 0;
  for (const char* worker : {"worker:0", "worker:1"})
    run += outcome.task(worker)["health"]["closures"]["run"].get<int>();
  EXPECT_EQ(run, 10);
  EXPECT_EQ(outcome.task("ps:0")["health"]["pushes"]["applied"], 11)
      << "its value, and ten updates";
  EXPECT_EQ(outcome.task("ps:0")["address"], address_of("ps:0"));
  EXPECT_GT(outcome.task("ps:0")["health"]["uptime_seconds"], 0.0);
  EXPECT_TRUE(outcome.task("chief:0")["health"]["seconds_since_last_end"].is_number());
}

TEST_F(StatusOfAJob, IsATableWithoutJson) {
  const Outcome outcome = status({});
  EXPECT_EQ(outcome.exit, "exit code 0") << outcome.err;
  EXPECT_THAT(outcome.out, StartsWith("TASK "));
  EXPECT_THAT(outcome.out, HasSubstr("\nchief:0 "));
  EXPECT_THAT(outcome.out, HasSubstr("\nworker:1 "));
  EXPECT_THAT(outcome.out, HasSubstr("\ncoordinator: 0 queued, 0 in flight, 0 completed"));
  std::istringstream lines(outcome.out);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 100U) << line;
}

TEST_F(StatusOfAJob, HasTheTextOfTheLastErrorForWhoKnowsTheJob) {
  const Function picky([](at::Tensor x) { check_finite(x.log(), "the age of Ada"); });
  coordinator.schedule(picky, at::ones({}));
  coordinator.join();
  coordinator.schedule(picky, at::zeros({}).sub(1));
  EXPECT_THROW(coordinator.join(), Error);
  std::string worker;
  const Outcome known = status();
  for (const char* task : {"worker:0", "worker:1"}) {
    if (!known.task(task)["health"]["last_error"].is_null()) worker = task;
  }
  ASSERT_NE(worker, "") << known.out;
  for (const std::string& task : {std::string("chief:0"), worker}) {
    const json& error = known.task(task)["health"]["last_error"];
    EXPECT_EQ(error["code"], "invalid_argument");
    EXPECT_EQ(error["cause"], "application");
    EXPECT_THAT(error["text"].get<std::string>(), HasSubstr("the age of Ada"));
    const Outcome stranger = status({"--json", "--cluster", address_of(task)}, "");
    EXPECT_EQ(stranger.report["tasks"][0]["health"]["last_error"]["code"], "invalid_argument");
    EXPECT_EQ(stranger.out.find("Ada"), std::string::npos) << stranger.out;
  }
  EXPECT_EQ(known.task(worker)["health"]["closures"]["failed"], 1);
  EXPECT_EQ(known.task("chief:0")["health"]["coordinator"]["failed"], 1);
}

TEST_F(StatusOfAJob, SeesALostAndRestartedWorker) {
  const json before = status().task("worker:1")["health"]["incarnation"];
  cluster.kill("worker:1");
  const Outcome killed = status();
  EXPECT_EQ(killed.exit, "exit code 69");
  EXPECT_EQ(killed.report["exit_code"], 69);
  EXPECT_EQ(killed.task("worker:1")["state"], "nobody_listens");
  EXPECT_EQ(killed.task("worker:1")["health"], json());
  EXPECT_THAT(killed.task("worker:1")["reason"].get<std::string>(),
              HasSubstr(address_of("worker:1")));
  EXPECT_EQ(killed.task("worker:0")["state"], "answers");
  cluster.restart("worker:1");
  ASSERT_TRUE(testing::await_answer(cluster.spec(), "worker:1"));
  const Outcome back = status();
  EXPECT_EQ(back.exit, "exit code 0") << back.out;
  EXPECT_NE(back.task("worker:1")["health"]["incarnation"], before);
  EXPECT_EQ(back.task("chief:0")["health"]["connections_lost"], 1);
}

TEST_F(Status, OfAStoppedTaskIsNoAnswer) {
  await_servers();
  cluster.stop("worker:0");
  const Outcome outcome = status({"--json", "--timeout", "1"});
  cluster.resume("worker:0");
  EXPECT_EQ(outcome.exit, "exit code 69");
  EXPECT_EQ(outcome.task("worker:0")["state"], "no_answer");
  EXPECT_EQ(outcome.task("worker:1")["state"], "answers");
  EXPECT_EQ(outcome.task("chief:0")["state"], "nobody_listens");
  EXPECT_THAT(outcome.task("chief:0")["reason"].get<std::string>(), HasSubstr("TF_CONFIG"));
}

TEST_F(Status, SaysThatTheChiefHasNoAddress) {
  await_servers();
  json config = json::parse(cluster.tf_config("worker:0"));
  config["cluster"].erase("chief");
  const std::string job = rpc::default_job_id(cluster.spec().to_json());
  const Outcome outcome = status({"--json", "--job-id", job}, config.dump());
  EXPECT_EQ(outcome.exit, "exit code 0") << outcome.out;
  ASSERT_EQ(outcome.report["missing"].size(), 1U);
  EXPECT_THAT(outcome.report["missing"][0].get<std::string>(),
              HasSubstr("add \"chief\": [\"host:port\"]"));
  const Outcome table = status({"--job-id", job}, config.dump());
  EXPECT_THAT(table.out, HasSubstr("missing: the cluster has no \"chief\""));
}

TEST_F(Status, TakesAddressesOrAFile) {
  await_servers();
  const Outcome addresses =
      status({"--json", "--cluster", address_of("ps:0"), address_of("worker:1")}, "");
  EXPECT_EQ(addresses.exit, "exit code 0") << addresses.out;
  ASSERT_EQ(addresses.report["tasks"].size(), 2U);
  EXPECT_EQ(addresses.report["tasks"][1]["address"], address_of("worker:1"));
  EXPECT_EQ(addresses.report["tasks"][1]["task"], json());
  const std::string path = ::testing::TempDir() + "cohort_status_cluster.json";
  for (const std::string& text : {cluster.spec().to_json(), cluster.tf_config("ps:0")}) {
    std::ofstream(path) << text;
    const Outcome file = status({"--json", "--cluster", path}, "");
    EXPECT_EQ(file.exit, "exit code 69") << "there is no coordinator";
    EXPECT_EQ(file.task("worker:1")["state"], "answers") << file.out;
  }
  std::filesystem::remove(path);
}

// It took the TF_CONFIG of one of the tasks, which nobody has at hand.
TEST_F(Status, TakesTheProcessIdOfALaunch) {
  testing::RunningProgram launch(
      {COHORT_COMMAND, "launch", "--workers", "1", "--ps", "1", "--", "sh", "-c",
       "case $TF_CONFIG in *'\"type\":\"chief\"'*) exec tail -f "
       "/dev/null;; *) exec \"$0\" server;; "
       "esac",
       COHORT_COMMAND},
      {{"COHORT_JOB_ID", "named"}});  // which status has not
  const std::string id = std::to_string(launch.pid());
  EXPECT_TRUE(launch.await_error("`cohort status --launch " + id + "`")) << launch.err();
  ASSERT_TRUE(launch.await("worker:0 serves at ")) << launch.err();
  ASSERT_TRUE(launch.await("ps:0 serves at ")) << launch.err();
  const Outcome outcome = status({"--json", "--launch", id}, "");
  EXPECT_EQ(outcome.task("worker:0")["state"], "answers") << outcome.out << outcome.err;
  EXPECT_EQ(outcome.task("ps:0")["state"], "answers");
  EXPECT_EQ(outcome.task("chief:0")["state"], "nobody_listens") << "it is no coordinator";
  launch.signal(SIGTERM);
  EXPECT_EQ(launch.wait().to_string(), "exit code 143");
  const Outcome ended = status({"--launch", id}, "");
  EXPECT_EQ(ended.exit, "exit code 64");
  EXPECT_THAT(ended.err, HasSubstr("got " + id + ", which has no tasks (--launch)"));
}

TEST_F(Status, OfAnotherClusterMeetsStrangers) {
  await_servers();
  const json other = {{"worker", {address_of("ps:0")}}, {"ps", {address_of("worker:0")}}};
  const Outcome outcome = status({"--json"}, json({{"cluster", other}}).dump());
  EXPECT_EQ(outcome.exit, "exit code 69");
  EXPECT_EQ(outcome.task("worker:0")["state"], "stranger") << outcome.out;
  const std::string job = rpc::default_job_id(cluster.spec().to_json());
  const Outcome mixed = status({"--json", "--job-id", job}, json({{"cluster", other}}).dump());
  EXPECT_EQ(mixed.task("worker:0")["state"], "stranger") << mixed.out;
  EXPECT_THAT(mixed.task("worker:0")["reason"].get<std::string>(), StartsWith("ps:0 of this job"));
}

TEST_F(Status, OfAWrongConfigurationIs64) {
  const std::map<std::string, std::string> configs = {
      {"", "expected a cluster"},
      {"{", "TF_CONFIG"},
      {R"({"cluster": {"worker": ["here"]}})", "host:port"}};
  for (const auto& [config, problem] : configs) {
    const Outcome outcome = status({}, config.empty() ? "{}" : config);
    EXPECT_EQ(outcome.exit, "exit code 64") << config;
    EXPECT_THAT(outcome.err, HasSubstr(problem));
  }
  const Outcome neither = status({"--cluster", "no_such_file"}, "");
  EXPECT_EQ(neither.exit, "exit code 64");
  EXPECT_THAT(neither.err, HasSubstr("\"host:port\" or a JSON file"));
  EXPECT_EQ(status({"--timeout", "0"}, "").exit, "exit code 64");
}

}  // namespace
}  // namespace cohort
