// SPDX-License-Identifier: Apache-2.0
// Clusters of processes that find each other by the variables of their launcher.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <list>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "cohort/rpc/reserved_port.h"
#include "cohort/testing/mpirun.h"
#include "cohort/testing/raw_socket.h"
#include "cohort/testing/running_program.h"
#include "cohort/testing/temporary_folder.h"

namespace cohort {
namespace {

using nlohmann::json;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using testing::RunningProgram;

constexpr const char* kDigits = COHORT_SOURCE_DIR "/examples/data/digits";

// The lines of JSON that the processes have printed.
std::vector<json> lines_in(const std::string& output) {
  std::vector<json> lines;
  std::istringstream stream(output);
  for (std::string line; std::getline(stream, line);) {
    if (line.starts_with("{")) lines.push_back(json::parse(line));
  }
  return lines;
}

void expect_checked(const std::vector<json>& lines, const std::set<std::string>& tasks) {
  std::set<std::string> checked;
  for (const json& line : lines) {
    checked.insert(line.at("task"));
    EXPECT_EQ(line.at("exit_code"), 0) << line.dump(2);
    EXPECT_EQ(line.at("peers").size() + 1, tasks.size()) << line.dump(2);
    for (const json& peer : line.at("peers")) EXPECT_EQ(peer.at("answers"), true) << line.dump(2);
  }
  EXPECT_EQ(checked, tasks);
}

class ByMpirun : public testing::LeavesNoProcess {
 protected:
  void SetUp() override {
    if (!testing::has_mpirun()) GTEST_SKIP() << "no MPI was found for this build";
  }
  // The command for each process that lets `words` print to a file of its own, since mpirun mixes
  // long lines of several processes.
  std::vector<std::string> to_files(const std::vector<std::string>& words) const {
    std::vector<std::string> all = {"sh", "-c", R"(exec "$@" > "$0.$OMPI_COMM_WORLD_RANK")",
                                    folder_.file("out")};
    all.insert(all.end(), words.begin(), words.end());
    return all;
  }
  // The output of all processes.
  std::string printed() const {
    std::string all;
    for (const std::string& name : folder_.names()) all += folder_.read(name);
    return all;
  }

 private:
  const testing::TemporaryFolder folder_;
};

TEST_F(ByMpirun, ProcessesCheckTheirCluster) {
  RunningProgram job = testing::mpi_job(3, to_files({COHORT_COMMAND, "check", "--json"}));
  EXPECT_EQ(job.wait().to_string(), "exit code 0") << job.err();
  expect_checked(lines_in(printed()), {"worker:0", "worker:1", "worker:2"});
}

TEST_F(ByMpirun, RanksAreTasksAndAllSeeOneCluster) {
  RunningProgram job = testing::mpi_job(3, to_files({"env", "COHORT_TASKS=chief=1,ps=1,worker=1",
                                                     COHORT_COMMAND, "config", "--json"}));
  EXPECT_EQ(job.wait().to_string(), "exit code 0") << job.err();
  const std::vector<json> lines = lines_in(printed());
  ASSERT_EQ(lines.size(), 3u);
  for (const json& line : lines) {
    EXPECT_EQ(line.at("resolver"), "mpi");
    EXPECT_EQ(line.at("cluster"), lines.front().at("cluster"));
    EXPECT_EQ(line.at("cluster").size(), 3u);
  }
}

TEST_F(ByMpirun, TheDeploymentScriptStartsThem) {
  std::vector<std::string> words = to_files({COHORT_COMMAND, "check", "--json"});
  words.insert(words.begin(), {"sh", COHORT_SOURCE_DIR "/examples/deploy/mpirun.sh", "2"});
  RunningProgram job(std::move(words), testing::mpi_environment());
  EXPECT_EQ(job.wait().to_string(), "exit code 0") << job.err();
  expect_checked(lines_in(printed()), {"worker:0", "worker:1"});
}

TEST_F(ByMpirun, WorkersTrainTogether) {
  RunningProgram job =
      testing::mpi_job(3, to_files({MNIST_MULTI_WORKER, "--data-dir", kDigits, "--epochs", "5"}));
  EXPECT_EQ(job.wait().to_string(), "exit code 0") << job.err();
  EXPECT_THAT(printed(), ContainsRegex("test accuracy 0\\.[89]"));
}

// Regression: mpirun waited for the server, and that for the next chief.
TEST_F(ByMpirun, TasksOfVersion1TrainAndAllEnd) {
  const testing::TemporaryFolder run;
  RunningProgram job = testing::mpi_job(
      4,
      to_files({"env", "COHORT_TASKS=chief=1,evaluator=1,ps=1,worker=1", "COHORT_END_WHEN_UNUSED=1",
                MNIST_V1, "--data-dir", kDigits, "--run-dir", run.file("v1"), "--steps", "400"}));
  EXPECT_EQ(job.wait().to_string(), "exit code 0") << job.err();
  EXPECT_THAT(printed(), ContainsRegex("test accuracy 0\\.[89].* at step 4[0-9]+"));
}

// As torchrun sets the variables of its processes, without its agent.
TEST(ByRank, ProcessesMeetAtRankZero) {
  const rpc::ReservedPort port;
  std::list<RunningProgram> processes;
  for (const char* const rank : {"0", "1"}) {
    processes.emplace_back(std::vector<std::string>{COHORT_COMMAND, "check", "--json"},
                           std::vector<std::pair<std::string, std::string>>{
                               {"RANK", rank},
                               {"WORLD_SIZE", "2"},
                               {"MASTER_ADDR", "127.0.0.1"},
                               {"MASTER_PORT", std::to_string(port.number())}});
  }
  std::string out;
  for (RunningProgram& process : processes) {
    EXPECT_EQ(process.wait().to_string(), "exit code 0") << process.err();
    out += process.out();
  }
  expect_checked(lines_in(out), {"worker:0", "worker:1"});
}

// Regression: it advised to look at firewalls (C304).
TEST(ByRank, AStoreOfAnotherVersionIsAFindingOfItsOwn) {
  testing::RawSocket store;  // it resets, as a store of LibTorch 2 does to a client of 1.13
  const std::string port = store.listen().substr(std::string("127.0.0.1:").size());
  RunningProgram process(
      {COHORT_COMMAND, "check", "--json"},
      {{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", port}});
  std::thread closing([&] {
    testing::RawSocket peer = store.accepted();
    peer.await_bytes();
    peer.reset();
  });
  EXPECT_EQ(process.wait().to_string(), "exit code 69") << process.err();
  closing.join();
  ASSERT_EQ(lines_in(process.out()).size(), 1U) << process.out();
  const json findings = lines_in(process.out()).front().at("findings");
  ASSERT_EQ(findings.size(), 1U) << findings.dump(2);
  EXPECT_EQ(findings[0]["code"], "C110");
  EXPECT_THAT(findings[0]["text"].get<std::string>(), HasSubstr("same version of PyTorch"));
}

TEST(ByRank, AProcessAloneKnowsItsTask) {
  const rpc::ReservedPort port;
  RunningProgram process({COHORT_COMMAND, "config", "--no-wait"},
                         {{"RANK", "1"},
                          {"WORLD_SIZE", "2"},
                          {"MASTER_ADDR", "127.0.0.1"},
                          {"MASTER_PORT", std::to_string(port.number())}});
  EXPECT_EQ(process.wait().to_string(), "exit code 0") << process.err();
  EXPECT_THAT(process.out(), HasSubstr("worker:1"));
}

}  // namespace
}  // namespace cohort
