// SPDX-License-Identifier: Apache-2.0
// Broken set-ups, each with the code of what `cohort check` finds.
#include "cohort/cli/check/comparison.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <set>

#include "cohort/cli/commands.h"
#include "cohort/testing/launcher_environment.h"

namespace cohort::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using testing::LauncherEnvironment;

std::vector<std::string> codes_of(const std::vector<Finding>& findings) {
  std::vector<std::string> codes;
  for (const Finding& each : findings) codes.emplace_back(each.kind->code);
  return codes;
}

TEST(FindingKinds, HaveCodesInOrderAndOneSentenceOfAdvice) {
  std::string last;
  for (const FindingKind& kind : finding_kinds()) {
    EXPECT_LT(last, kind.code);
    last = kind.code;
    EXPECT_EQ(kind.exit_code == 0, kind.severity == Severity::warning) << kind.code;
    const std::string advice = kind.advice;
    EXPECT_TRUE(advice.ends_with(".") && advice.find(". ") == std::string::npos) << kind.code;
  }
}

TEST(FindingKinds, TheFirstErrorMakesTheExitCode) {
  EXPECT_EQ(exit_code_of({}), 0);
  EXPECT_EQ(exit_code_of({finding("C501", "", "")}), 0);
  EXPECT_EQ(exit_code_of({finding("C601", "", ""), finding("C303", "", "")}), 69);
  EXPECT_EQ(exit_code_of({finding("C303", "", ""), finding("C108", "", "")}), 64);
}

// --- what the environment tells ------------------------------------------------------------------

struct BrokenEnvironment {
  const char* what;
  LauncherEnvironment::Variables variables;
  const char* code;
};

std::string tf_config(const std::string& cluster, const std::string& task = "") {
  return R"({"cluster": )" + cluster + (task.empty() ? "" : R"(, "task": )" + task) + "}";
}

const std::string kWorker0 = R"({"type": "worker", "index": 0})";

std::vector<BrokenEnvironment> broken_environments() {
  using Variables = LauncherEnvironment::Variables;
  const Variables step = {{"SLURM_PROCID", "0"},
                          {"SLURM_STEP_NUM_TASKS", "2"},
                          {"SLURM_STEP_NODELIST", "n[1-2]"},
                          {"SLURM_STEP_TASKS_PER_NODE", "1(x2)"}};
  const auto with = [](Variables variables, const Variables& more) {
    for (const auto& [name, text] : more) variables[name] = text;
    return variables;
  };
  const auto config = [](const std::string& cluster, const std::string& task = kWorker0) {
    return Variables{{"TF_CONFIG", tf_config(cluster, task)}};
  };
  return {
      {"nothing is set", {}, "C101"},
      {"an empty TF_CONFIG object", {{"TF_CONFIG", "{}"}}, "C101"},
      {"TF_CONFIG is no JSON", {{"TF_CONFIG", "{cluster}"}}, "C102"},
      {"TF_CONFIG is empty text", {{"TF_CONFIG", ""}}, "C102"},
      {"a misspelled key", {{"TF_CONFIG", R"({"clustr": {"worker": ["a:1"]}})"}}, "C102"},
      {"the sparse form",
       {{"TF_CONFIG", R"({"sparseCluster": {"worker": {"0": "a:1"}}})"}},
       "C102"},
      {"an index that is no number",
       config(R"({"worker": ["a:1", "b:1"]})", R"({"type": "worker", "index": "x"})"), "C102"},
      {"an index without a type", config(R"({"worker": ["a:1", "b:1"]})", R"({"index": 0})"),
       "C102"},
      {"an address that is a number", config(R"({"worker": [1]})"), "C102"},
      {"no task", {{"TF_CONFIG", tf_config(R"({"worker": ["a:1", "b:1"]})")}}, "C105"},
      {"an index above the cluster",
       config(R"({"worker": ["a:1", "b:1"]})", R"({"type": "worker", "index": 2})"), "C105"},
      {"a negative index", config(R"({"worker": ["a:1"]})", R"({"type": "worker", "index": -1})"),
       "C105"},
      {"a type that the cluster lacks",
       config(R"({"worker": ["a:1"]})", R"({"type": "chief", "index": 0})"), "C105"},
      {"an address twice", config(R"({"worker": ["a:1", "a:1"]})"), "C106"},
      {"localhost and 127.0.0.1", config(R"({"worker": ["localhost:1", "127.0.0.1:1"]})"), "C106"},
      {"a loopback beside a host", config(R"({"worker": ["127.0.0.1:1", "b:1"]})"), "C107"},
      {"an unknown job", config(R"({"worker": ["a:1"], "master": ["b:1"]})"), "C104"},
      {"two chiefs", config(R"({"chief": ["c:1", "d:1"], "worker": ["a:1"]})"), "C104"},
      {"servers without workers", config(R"({"ps": ["a:1"]})", R"({"type": "ps", "index": 0})"),
       "C104"},
      {"an address without a port", config(R"({"worker": ["a", "b:1"]})"), "C104"},
      {"port 0", config(R"({"worker": ["a:0", "b:1"]})"), "C104"},
      {"port 70000", config(R"({"worker": ["a:70000", "b:1"]})"), "C104"},
      {"holes in a job", config(R"({"worker": {"0": "a:1", "2": "b:1"}})"), "C104"},
      {"a node list that ends early", with(step, {{"SLURM_STEP_NODELIST", "n[1-2"}}), "C102"},
      {"too few hosts for Slurm's tasks", with(step, {{"SLURM_STEP_NODELIST", "n1"}}), "C102"},
      {"Slurm's numbers contradict each other", with(step, {{"SLURM_STEP_NUM_TASKS", "3"}}),
       "C102"},
      {"a rank that is none", with(step, {{"SLURM_PROCID", "2"}}), "C102"},
      {"jobs of another size", with(step, {{"COHORT_TASKS", "worker=3"}}), "C102"},
      {"jobs that cannot be read", with(step, {{"COHORT_TASKS", "worker:2"}}), "C102"},
      {"torchrun without an address",
       {{"TORCHELASTIC_RUN_ID", "j"}, {"RANK", "0"}, {"WORLD_SIZE", "2"}},
       "C102"},
      {"torchrun's rank alone", {{"TORCHELASTIC_RUN_ID", "j"}, {"RANK", "0"}}, "C102"},
      {"Open MPI's size alone", {{"OMPI_COMM_WORLD_SIZE", "2"}}, "C102"},
      {"an unknown role of DMLC's", {{"DMLC_ROLE", "tracker"}}, "C102"},
      {"SageMaker without the own host", {{"SM_HOSTS", R"(["a", "b"])"}}, "C102"},
      {"an unknown resolver", {{"COHORT_CLUSTER_RESOLVER", "k8s"}}, "C102"},
  };
}

TEST(BrokenEnvironments, HaveTheirCode) {
  LauncherEnvironment environment;
  for (const BrokenEnvironment& each : broken_environments()) {
    LauncherEnvironment::clear();
    LauncherEnvironment::set(each.variables);
    ::testing::internal::CaptureStdout();
    const char* const words[] = {"cohort", "check", "--json"};
    EXPECT_EQ(run(3, words), 64) << each.what;
    const auto line = nlohmann::json::parse(::testing::internal::GetCapturedStdout());
    std::set<std::string> codes;
    for (const auto& found : line.at("findings")) {
      if (found.at("severity") == "error") codes.insert(found.at("code"));
    }
    EXPECT_THAT(codes, ElementsAre(each.code)) << each.what << ": " << line.dump(2);
  }
}

TEST(BrokenEnvironments, ACoordinatorWithoutAnAddressIsOnlyWarnedOf) {
  const ClusterSpec spec{{"ps", {"a:1"}}, {"worker", {"b:1"}}};
  EXPECT_THAT(codes_of(findings_of_cluster(spec, std::nullopt, std::nullopt)), ElementsAre("C109"));
  const ClusterSpec workers{{"worker", {"a:1"}}};
  EXPECT_THAT(codes_of(findings_of_cluster(workers, "evaluator", 0)), IsEmpty());
}

// --- what the tasks tell each other --------------------------------------------------------------

SetupReport healthy() {
  TaskFacts own{.task = "worker:0",
                .process = "1",
                .host = "h1",
                .cluster = R"({"worker": ["a:1", "b:1"]})",
                .cohort_version = "0.1.0",
                .protocol_version = 13,
                .torch_version = "1.13.1",
                .data = {{.path = "/data"}}};
  TaskFacts other = own;
  other.task = "worker:1";
  other.process = "2";
  other.host = "h2";
  return {.launcher = "tf_config",
          .own = std::move(own),
          .tasks = 2,
          .is_listening = true,
          .peers = {{.task = "worker:1",
                     .address = "b:1",
                     .state = PeerReport::State::answers,
                     .facts = std::move(other),
                     .clock_difference = 0.5,
                     .has_dialed = true}}};
}

struct BrokenSetup {
  const char* what;
  std::function<void(SetupReport& setup, PeerReport& peer)> breaks;
  const char* code;
};

// The state of a task that gave no answer.
auto instead_of_answer(PeerReport::State state) {
  return [state](SetupReport&, PeerReport& peer) {
    peer.state = state;
    peer.facts.reset();
  };
}

auto not_listening(ErrorCode code) {
  return [code](SetupReport& setup, PeerReport&) {
    setup.is_listening = false;
    setup.listening = Error(code, "why");
  };
}

std::vector<BrokenSetup> broken_setups() {
  using State = PeerReport::State;
  return {
      {"its name is not known", instead_of_answer(State::name_not_found), "C201"},
      {"no name server", instead_of_answer(State::no_name_server), "C202"},
      {"nobody listens", instead_of_answer(State::refused), "C303"},
      {"a firewall drops packets", instead_of_answer(State::no_answer), "C304"},
      {"another program", instead_of_answer(State::stranger), "C305"},
      {"the own port is taken", not_listening(ErrorCode::resource_exhausted), "C301"},
      {"the own port is below 1024", not_listening(ErrorCode::permission_denied), "C302"},
      {"the own address is another host's", not_listening(ErrorCode::invalid_argument), "C203"},
      {"the own name is not resolved", not_listening(ErrorCode::unavailable), "C202"},
      {"it leads to this process",
       [](SetupReport&, PeerReport& peer) { peer.facts->process = "1"; }, "C306"},
      {"exchanged indices", [](SetupReport&, PeerReport& peer) { peer.facts->task = "worker:2"; },
       "C306"},
      {"one index twice", [](SetupReport&, PeerReport& peer) { peer.facts->task = "worker:0"; },
       "C308"},
      {"a firewall in one direction",
       [](SetupReport&, PeerReport& peer) { peer.has_dialed = false; }, "C307"},
      {"another cluster", [](SetupReport&, PeerReport& peer) { peer.facts->cluster = "{}"; },
       "C108"},
      {"another Cohort",
       [](SetupReport&, PeerReport& peer) { peer.facts->cohort_version = "0.2.0"; }, "C401"},
      {"another protocol",
       [](SetupReport&, PeerReport& peer) { peer.facts->protocol_version = 12; }, "C402"},
      {"another LibTorch",
       [](SetupReport&, PeerReport& peer) { peer.facts->torch_version = "2.7"; }, "C403"},
      {"a clock ahead", [](SetupReport&, PeerReport& peer) { peer.clock_difference = 30; }, "C501"},
      {"a clock behind", [](SetupReport&, PeerReport& peer) { peer.clock_difference = -2; },
       "C501"},
      {"few descriptors",
       [](SetupReport& setup, PeerReport&) { setup.own.limits.descriptors = 30; }, "C601"},
      {"few descriptors for so many tasks",
       [](SetupReport& setup, PeerReport&) {
         setup.tasks = 1000;
         setup.own.limits.descriptors = 1024;
       },
       "C601"},
      {"little locked memory for MPI",
       [](SetupReport& setup, PeerReport&) {
         setup.launcher = "mpi";
         setup.has_fabric = true;
         setup.own.limits.locked_bytes = 65536;
       },
       "C602"},
      {"little shared memory for two tasks of a host",
       [](SetupReport& setup, PeerReport& peer) {
         peer.facts->host = "h1";
         setup.own.limits.shared_bytes = 1 << 20;
       },
       "C603"},
      {"little address space",
       [](SetupReport& setup, PeerReport&) { setup.own.limits.address_space_bytes = 1 << 29; },
       "C604"},
      {"only small files",
       [](SetupReport& setup, PeerReport&) { setup.own.limits.file_bytes = 1 << 20; }, "C605"},
      {"few threads", [](SetupReport& setup, PeerReport&) { setup.own.limits.threads = 20; },
       "C606"},
      {"a data folder is missing",
       [](SetupReport& setup, PeerReport&) { setup.own.data[0].exists = false; }, "C701"},
      {"a data folder is not ours to read",
       [](SetupReport& setup, PeerReport&) { setup.own.data[0].can_be_read = false; }, "C702"},
      {"a data folder is not mounted",
       [](SetupReport& setup, PeerReport&) { setup.own.data[0].is_empty = true; }, "C704"},
      {"other data folders",
       [](SetupReport&, PeerReport& peer) { peer.facts->data[0].path = "/mnt"; }, "C703"},
      {"no data folders", [](SetupReport&, PeerReport& peer) { peer.facts->data.clear(); }, "C703"},
  };
}

TEST(BrokenSetups, HaveTheirCode) {
  EXPECT_THAT(codes_of(findings_of_setup(healthy())), IsEmpty());
  for (const BrokenSetup& each : broken_setups()) {
    SetupReport setup = healthy();
    each.breaks(setup, setup.peers[0]);
    EXPECT_THAT(codes_of(findings_of_setup(setup)), ElementsAre(each.code)) << each.what;
  }
}

TEST(BrokenSetups, EachKindOfFindingHasOne) {
  std::set<std::string> seen = {
      "C103", "C109", "C110"};  // see from_environment_test, above, and launched_clusters_test
  for (const BrokenSetup& each : broken_setups()) seen.insert(each.code);
  for (const BrokenEnvironment& each : broken_environments()) seen.insert(each.code);
  for (const FindingKind& kind : finding_kinds())
    EXPECT_TRUE(seen.contains(kind.code)) << kind.code;
  EXPECT_GE(broken_setups().size() + broken_environments().size(), 40u);
}

TEST(TaskFacts, AreReadAsTheyWereSent) {
  TaskFacts facts = healthy().own;
  facts.limits.descriptors = 7;
  facts.data.push_back({.path = "/none", .exists = false});
  EXPECT_EQ(facts_of_text(text_of_facts(facts)), facts);
  for (const char* const text : {"", "{}", "[1]", R"({"task": 1})"})
    EXPECT_EQ(facts_of_text(text), std::nullopt) << text;
}

}  // namespace
}  // namespace cohort::cli
