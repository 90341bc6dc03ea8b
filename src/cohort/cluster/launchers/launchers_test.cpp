// SPDX-License-Identifier: Apache-2.0
#include "cohort/cluster/launchers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <set>

#include "cohort/cluster/launchers/key_store.h"
#include "cohort/cluster/launchers/own_address.h"
#include "cohort/cluster/launchers/rendezvous.h"
#include "cohort/core/error.h"
#include "cohort/net/host_port.h"
#include "cohort/testing/launcher_environment.h"
#include "cohort/testing/throws_error.h"

namespace cohort {
namespace {

using ::testing::ElementsAre;
using testing::LauncherEnvironment;
using ::testing::StartsWith;
using testing::throws_error;
using Variables = LauncherEnvironment::Variables;

constexpr auto kPatience = std::chrono::seconds(60);
constexpr auto kSoon = std::chrono::milliseconds(300);

std::string free_port() {
  return net::parse_address(cluster::reserve_address("127.0.0.1", Deadline::after(kPatience))).port;
}

class Launchers : public ::testing::Test {
 protected:
  static void set(const Variables& variables) { LauncherEnvironment::set(variables); }
  // The cluster of each, asked at the same time as the processes of a job do.
  static std::vector<ClusterSpec> clusters(
      const std::vector<std::unique_ptr<ClusterResolver>>& resolvers) {
    std::vector<std::future<ClusterSpec>> asked;
    for (const auto& resolver : resolvers)
      asked.push_back(std::async(std::launch::async, [&] { return resolver->cluster_spec(); }));
    std::vector<ClusterSpec> found;
    for (auto& one : asked) found.push_back(one.get());
    return found;
  }
  void set_torchrun(const std::string& rank, const std::string& size) {
    set({{"RANK", rank},
         {"WORLD_SIZE", size},
         {"MASTER_ADDR", "127.0.0.1"},
         {"MASTER_PORT", port_}});
  }
  std::vector<std::unique_ptr<ClusterResolver>> torchrun_of(int size, LauncherOptions options) {
    std::vector<std::unique_ptr<ClusterResolver>> resolvers;
    for (int rank = 0; rank < size; ++rank) {
      set_torchrun(std::to_string(rank), std::to_string(size));
      resolvers.push_back(std::make_unique<TorchrunResolver>(options));
    }
    return resolvers;
  }

  LauncherEnvironment environment_;
  std::string port_ = free_port();
};

TEST_F(Launchers, MeetAtRankZeroOfTorchrun) {
  const auto resolvers =
      torchrun_of(4, {.jobs = {{"chief", 1}, {"ps", 1}, {"worker", 2}}, .timeout = kPatience});
  const std::vector<ClusterSpec> found = clusters(resolvers);
  for (const ClusterSpec& each : found) EXPECT_EQ(each, found.front());
  EXPECT_THAT(found.front().jobs(), ElementsAre("chief", "ps", "worker"));
  std::set<std::string> addresses;
  for (const auto& [job, tasks] : found.front().tasks()) {
    for (const auto& [index, address] : tasks) addresses.insert(address);
  }
  EXPECT_EQ(addresses.size(), 4u);
  EXPECT_THAT(*addresses.begin(), StartsWith("127.0.0.1:"));
  EXPECT_EQ(resolvers[3]->task(), (TaskId{"worker", 1}));
  EXPECT_EQ(resolvers[3]->master(), "grpc://" + found.front().task_address("worker", 1));
}

TEST_F(Launchers, LeaveTheEvaluatorOutOfTheCluster) {
  const auto resolvers =
      torchrun_of(3, {.jobs = {{"evaluator", 1}, {"worker", 2}}, .timeout = kPatience});
  EXPECT_THAT(clusters(resolvers).front().jobs(), ElementsAre("worker"));
  EXPECT_EQ(resolvers[0]->task(), (TaskId{"evaluator", 0}));
}

TEST_F(Launchers, MeetInTheStoreOfTorchrunsAgentAgainAfterARestart) {
  const auto agent = cluster::open_tcp_store(
      {.host = "127.0.0.1", .port = static_cast<std::uint16_t>(std::stoi(port_)), .opens_it = true},
      Deadline::after(kPatience));
  set({{"TORCHELASTIC_USE_AGENT_STORE", "True"}, {"TORCHELASTIC_RUN_ID", "job"}});
  // An earlier start has left this under the same keys.
  for (const char* const key :
       {"cohort/job/0/address1", "cohort/job/0/list0", "cohort/job/0/seen1"})
    agent->set(key, "127.0.0.1:1\n127.0.0.1:1");
  agent->set("cohort/job/0/final0", "127.0.0.1:1\n127.0.0.1:1");
  const std::vector<ClusterSpec> found = clusters(torchrun_of(2, {.timeout = kPatience}));
  EXPECT_EQ(found[0], found[1]);
  EXPECT_NE(found[0].task_address("worker", 0), "127.0.0.1:1");
}

TEST_F(Launchers, NameTheProcessesThatDoNotCome) {
  set_torchrun("0", "3");
  const TorchrunResolver resolver({.timeout = kSoon});
  EXPECT_THAT([&] { resolver.cluster_spec(); },
              throws_error(ErrorCode::deadline_exceeded, "got none from ranks 1, 2"));
}

TEST_F(Launchers, SayWhatToDoWithoutAStore) {
  set_torchrun("1", "2");
  const TorchrunResolver resolver({.timeout = kSoon});
  try {
    resolver.cluster_spec();
    ADD_FAILURE() << "expected an error";
  } catch (const Error& error) {  // by LibTorch's own deadline or by ours
    EXPECT_TRUE(error.code() == ErrorCode::deadline_exceeded ||
                error.code() == ErrorCode::unavailable);
    EXPECT_THAT(error.message(), ::testing::HasSubstr("the same version of PyTorch"));
  }
}

TEST_F(Launchers, RefuseTorchrunsVariablesThatAreMissingOrWrong) {
  const auto make = [] { TorchrunResolver{}; };
  EXPECT_THAT(make, throws_error(ErrorCode::failed_precondition, "RANK"));
  set_torchrun("2", "2");
  EXPECT_THAT(make, throws_error(ErrorCode::failed_precondition, "expected RANK below 2"));
  set_torchrun("one", "2");
  EXPECT_THAT(make, throws_error(ErrorCode::invalid_argument, "a number in RANK"));
  set_torchrun("1", "2");
  set({{"MASTER_PORT", "70000"}});
  EXPECT_THAT(make, throws_error(ErrorCode::invalid_argument, "MASTER_PORT"));
  set_torchrun("1", "2");
  ::unsetenv("MASTER_ADDR");
  EXPECT_THAT(make, throws_error(ErrorCode::failed_precondition, "MASTER_ADDR"));
  set_torchrun("1", "2");
  EXPECT_THAT(
      [] {
        TorchrunResolver({.jobs = {{"worker", 3}}});
      },
      throws_error(ErrorCode::failed_precondition, "expected 2 tasks"));
  EXPECT_THAT([] { TorchrunResolver({.timeout = Duration::zero()}); },
              throws_error(ErrorCode::invalid_argument, "a timeout above 0"));
}

TEST_F(Launchers, ReadTheRanksOfEachMpi) {
  const std::pair<Variables, std::int64_t> cases[] = {
      {{{"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "2"}}, 1},
      {{{"PMI_RANK", "2"}, {"PMI_SIZE", "3"}}, 2},
      {{{"PMIX_RANK", "3"}, {"SLURM_STEP_NUM_TASKS", "4"}}, 3}};
  for (const auto& [variables, rank] : cases) {
    LauncherEnvironment::clear();
    set(variables);
    EXPECT_EQ(MpiResolver().task(), (TaskId{"worker", rank}));
  }
}

TEST_F(Launchers, MeetForMpiAtAGivenMaster) {
  std::vector<std::unique_ptr<ClusterResolver>> resolvers;
  for (const char* const rank : {"0", "1"}) {
    set({{"PMI_RANK", rank},
         {"PMI_SIZE", "2"},
         {"MASTER_ADDR", "127.0.0.1"},
         {"MASTER_PORT", port_}});
    resolvers.push_back(std::make_unique<MpiResolver>(LauncherOptions{.timeout = kPatience}));
  }
  const std::vector<ClusterSpec> found = clusters(resolvers);
  EXPECT_EQ(found[0], found[1]);
  EXPECT_EQ(found[0].num_tasks("worker"), 2);
}

TEST_F(Launchers, RefuseMpisVariablesThatAreMissingOrWrong) {
  const auto make = [] { MpiResolver{}; };
  EXPECT_THAT(make, throws_error(ErrorCode::failed_precondition, "start the program with mpirun"));
  set({{"OMPI_COMM_WORLD_RANK", "1"}});
  EXPECT_THAT(make, throws_error(ErrorCode::failed_precondition, "OMPI_COMM_WORLD_SIZE"));
  set({{"OMPI_COMM_WORLD_SIZE", "1"}});
  EXPECT_THAT(make, throws_error(ErrorCode::failed_precondition, "OMPI_COMM_WORLD_RANK below 1"));
  set({{"OMPI_COMM_WORLD_SIZE", "2"}, {"MASTER_ADDR", "h"}});
  EXPECT_THAT(make, throws_error(ErrorCode::failed_precondition, "MASTER_PORT"));
}

class Dmlc : public Launchers {
 protected:
  std::unique_ptr<ClusterResolver> process(const std::string& role, const Variables& more = {}) {
    set({{"DMLC_ROLE", role},
         {"DMLC_PS_ROOT_URI", "127.0.0.1"},
         {"DMLC_PS_ROOT_PORT", port_},
         {"DMLC_NUM_SERVER", "1"},
         {"DMLC_NUM_WORKER", "2"}});
    set(more);
    return std::make_unique<DmlcResolver>(LauncherOptions{.timeout = kPatience});
  }
};

TEST_F(Dmlc, ProcessesMeetAtTheScheduler) {
  std::vector<std::unique_ptr<ClusterResolver>> resolvers;
  resolvers.push_back(process("scheduler"));
  resolvers.push_back(process("server"));  // without an index
  resolvers.push_back(process("worker", {{"DMLC_WORKER_ID", "1"}}));
  resolvers.push_back(process("worker", {{"DMLC_WORKER_ID", "0"}}));
  const std::vector<ClusterSpec> found = clusters(resolvers);
  for (const ClusterSpec& each : found) EXPECT_EQ(each, found.front());
  EXPECT_THAT(found.front().jobs(), ElementsAre("chief", "ps", "worker"));
  EXPECT_EQ(resolvers[0]->task(), (TaskId{"chief", 0}));
  EXPECT_EQ(resolvers[1]->task(), (TaskId{"ps", 0}));
  EXPECT_EQ(resolvers[2]->task(), (TaskId{"worker", 1}));
}

TEST_F(Dmlc, VariablesThatAreWrongAreRefused) {
  EXPECT_THAT([&] { process("tracker"); },
              throws_error(ErrorCode::invalid_argument, "scheduler, server or worker"));
  EXPECT_THAT(
      [&] {
        process("worker", {{"DMLC_WORKER_ID", "2"}});
      },
      throws_error(ErrorCode::failed_precondition, "DMLC_WORKER_ID below 2"));
  ::unsetenv("DMLC_WORKER_ID");
  EXPECT_THAT(
      [&] {
        process("server", {{"DMLC_NUM_SERVER", "0"}});
      },
      throws_error(ErrorCode::failed_precondition, "a number of 0 in DMLC_NUM_SERVER"));
  process("worker");
  ::unsetenv("DMLC_PS_ROOT_URI");
  EXPECT_THAT([] { DmlcResolver{}; },
              throws_error(ErrorCode::failed_precondition, "DMLC_PS_ROOT_URI"));
  EXPECT_THAT(
      [] {
        DmlcResolver({.jobs = {{"worker", 1}}});
      },
      throws_error(ErrorCode::invalid_argument, "no LauncherOptions::jobs"));
}

TEST_F(Launchers, UseTheHostOfTheEnvironment) {
  set({{"COHORT_OWN_HOST", "localhost"}});
  EXPECT_EQ(cluster::own_host("", "127.0.0.1", Deadline::after(kPatience)), "localhost");
  EXPECT_EQ(cluster::own_host("mine", "127.0.0.1", Deadline::after(kPatience)), "mine");
  EXPECT_THAT([] { cluster::reserve_address("192.0.2.7", Deadline::after(kPatience)); },
              throws_error(ErrorCode::invalid_argument, "set COHORT_OWN_HOST"));
}

TEST(Reachable, IsNoLoopbackBesideTheAddressOfANetwork) {
  constexpr internal::Launcher launcher{"torchrun", ""};
  cluster::check_reachable(launcher, {"127.0.0.1:1", "[::1]:2"});
  cluster::check_reachable(launcher, {"10.0.0.1:1", "10.0.0.2:2"});
  EXPECT_THAT(
      [&] {
        cluster::check_reachable(launcher, {"127.0.1.1:1", "10.0.0.2:2"});
      },
      throws_error(ErrorCode::failed_precondition, "127.0.1.1:1, which only its own host"));
}

}  // namespace
}  // namespace cohort
