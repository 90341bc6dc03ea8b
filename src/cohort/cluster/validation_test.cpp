// SPDX-License-Identifier: Apache-2.0
#include "cohort/cluster/validation.h"

#include <gmock/gmock.h>

#include "cohort/core/error.h"

namespace cohort {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Jobs = std::map<std::string, std::vector<std::string>>;

template <class Validate>
std::string complaint(Validate validate, const ClusterSpec& spec, std::optional<std::string> type,
                      std::optional<std::int64_t> index) {
  try {
    validate(spec, type, index);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    return error.message();
  }
  return "accepted";
}

std::string of_cluster(const Jobs& jobs, std::optional<std::string> type = {},
                       std::optional<std::int64_t> index = {}) {
  return complaint(&validate_cluster, ClusterSpec(jobs), type, index);
}

std::string of_ps(const Jobs& jobs, std::optional<std::string> type = {},
                  std::optional<std::int64_t> index = {}) {
  return complaint(&validate_parameter_server_cluster, ClusterSpec(jobs), type, index);
}

std::string of_multi_worker(const Jobs& jobs, std::optional<std::string> type = {},
                            std::optional<std::int64_t> index = {}) {
  return complaint(&validate_multi_worker_cluster, ClusterSpec(jobs), type, index);
}

const Jobs kWorkers{{"worker", {"a:1", "b:1"}}};
const Jobs kPs{{"worker", {"a:1", "b:1"}}, {"ps", {"p:1"}}, {"chief", {"c:1"}}};

TEST(ValidateCluster, TakesEveryTaskOfTheCluster) {
  EXPECT_EQ(of_cluster(kPs, "worker", 1), "accepted");
  EXPECT_EQ(of_cluster(kPs, "ps", 0), "accepted");
  EXPECT_EQ(of_cluster(kPs, "chief", 0), "accepted");
  EXPECT_EQ(of_cluster(kPs), "accepted");
  EXPECT_EQ(of_cluster({}), "accepted");
}

TEST(ValidateMultiWorkerCluster, TakesTasksThatTrainAndEvaluatorsAlone) {
  EXPECT_EQ(of_multi_worker({}), "accepted");
  EXPECT_EQ(of_multi_worker(kWorkers, "worker", 1), "accepted");
  EXPECT_EQ(of_multi_worker({{"chief", {"c:1"}}}, "chief", 0), "accepted");
  EXPECT_EQ(of_multi_worker(kWorkers, "evaluator", 0), "accepted");
}

// As the documentation of tf.distribute has it.
TEST(ValidateMultiWorkerCluster, TakesServersBesideWorkersWithoutAChief) {
  EXPECT_EQ(of_multi_worker({{"worker", {"a:1", "b:1"}}, {"ps", {"p:1"}}}, "worker", 0),
            "accepted");
}

TEST(ValidateMultiWorkerCluster, RefusesWhatCannotTrainTogether) {
  EXPECT_THAT(of_multi_worker(kWorkers), HasSubstr("got no type"));
  EXPECT_THAT(of_multi_worker(kWorkers, "worker"), HasSubstr("got no index"));
  EXPECT_THAT(of_multi_worker(kPs, "worker", 0), HasSubstr("`cohort launch --ps 0`"));
  EXPECT_THAT(of_multi_worker({{"worker", {"a:1"}}, {"ps", {"p:1"}}}, "ps", 0),
              HasSubstr("parameter servers belong to ParameterServerStrategy"));
  EXPECT_THAT(of_multi_worker({{"worker", {"a:1", "A:01"}}}, "worker", 0),
              HasSubstr("a different address for each task"));
  EXPECT_THAT(of_multi_worker({{"worker", {"a:1", "http://b:1"}}}, "worker", 0),
              HasSubstr("as the address of worker:1"));
  EXPECT_THAT(
      complaint(&validate_multi_worker_cluster,
                ClusterSpec::from_tasks({{"worker", {{0, "a:1"}, {2, "b:1"}}}}), "worker", 0),
      HasSubstr("without holes"));
}

TEST(ValidateCluster, TakesAnyEvaluatorThatIsNotListed) {
  EXPECT_EQ(of_cluster(kWorkers, "evaluator", 0), "accepted");
  EXPECT_EQ(of_cluster(kWorkers, "evaluator", 9), "accepted");
  EXPECT_THAT(of_cluster({{"evaluator", {"e:1"}}}, "evaluator", 1), HasSubstr("evaluator:1"));
}

TEST(ValidateCluster, RefusesOtherJobs) {
  EXPECT_THAT(
      of_cluster({{"master", {"m:1"}}}),
      AllOf(HasSubstr("expected only the jobs chief, worker, ps, evaluator, got \"master\""),
            HasSubstr("\"master\" is an old name of \"chief\"")));
}

TEST(ValidateCluster, NamesTheJobThatAMisspelledOneMayMean) {
  EXPECT_THAT(of_cluster({{"wroker", {"w:1"}}}), HasSubstr("; did you mean 'worker'?"));
  EXPECT_THAT(of_cluster(kWorkers, "wrker", 0), HasSubstr("; did you mean 'worker'?"));
}

// The error asked for another address, and one more host would have got it, too.
TEST(ValidateCluster, AsksForThePortsOfTasksOfOneHost) {
  for (const auto& validate :
       {&validate_parameter_server_cluster, &validate_multi_worker_cluster}) {
    const ClusterSpec spec{{"worker", {"h1", "h1"}}, {"ps", {"h2:1"}}};
    EXPECT_THAT(complaint(validate, spec, "worker", 0),
                HasSubstr("expected \"host:port\" with a port of 1 to 65535 as the address of "
                          "worker:0, got \"h1\""));
  }
}

TEST(ValidateCluster, RefusesOtherOwnTypes) {
  EXPECT_THAT(of_cluster(kWorkers, "foo", 0), HasSubstr("got \"foo\"; set task.type"));
  EXPECT_THAT(of_cluster(kWorkers, "", 0), HasSubstr("got \"\""));
}

TEST(ValidateCluster, RefusesAnOwnTypeThatIsNotInTheCluster) {
  EXPECT_THAT(of_cluster(kWorkers, "ps", 0), HasSubstr("expected the own job \"ps\""));
  EXPECT_THAT(of_cluster(kWorkers, "chief", 0), HasSubstr(R"(got {"worker":["a:1","b:1"]})"));
}

TEST(ValidateCluster, RefusesSecondChiefsAndEvaluators) {
  EXPECT_THAT(of_cluster({{"chief", {"c:1", "c:2"}}}), HasSubstr("at most one chief"));
  EXPECT_THAT(of_cluster({{"evaluator", {"c:1", "c:2"}}}), HasSubstr("at most one evaluator"));
}

TEST(ValidateCluster, RefusesIndicesOutOfRange) {
  EXPECT_THAT(of_cluster(kWorkers, "worker", 2),
              HasSubstr("expected the own task worker:2 in the cluster"));
  EXPECT_THAT(of_cluster(kWorkers, "worker", -1), HasSubstr("index of 0 or more, got -1"));
  EXPECT_THAT(of_cluster(kWorkers, "evaluator", -1), HasSubstr("got -1"));
}

TEST(ValidateCluster, WantsAnIndexWithAType) {
  EXPECT_THAT(of_cluster(kWorkers, "worker"), HasSubstr("expected an index for the own task"));
}

TEST(ValidateCluster, LooksForTheOwnIndexNotForTheCount) {
  const ClusterSpec spec = ClusterSpec::from_tasks({{"worker", {{0, "a:1"}, {2, "c:1"}}}});
  EXPECT_EQ(complaint(&validate_cluster, spec, "worker", 2), "accepted");
  EXPECT_THAT(complaint(&validate_cluster, spec, "worker", 1), HasSubstr("worker:1"));
}

TEST(ValidateCluster, ComplainsInAFixedOrder) {
  Jobs jobs{{"foo", {}}, {"chief", {"c:1", "c:2"}}, {"evaluator", {"e:1", "e:2"}}};
  EXPECT_THAT(of_cluster(jobs, "bar", 7), HasSubstr("\"foo\""));
  jobs.erase("foo");
  EXPECT_THAT(of_cluster(jobs, "bar", 7), HasSubstr("\"bar\""));
  EXPECT_THAT(of_cluster(jobs, "ps", 7), HasSubstr("own job \"ps\""));
  EXPECT_THAT(of_cluster(jobs, "chief", 7), HasSubstr("one chief"));
  jobs["chief"] = {"c:1"};
  EXPECT_THAT(of_cluster(jobs, "chief", 7), HasSubstr("one evaluator"));
  jobs["evaluator"] = {};
  EXPECT_THAT(of_cluster(jobs, "chief", 7), HasSubstr("chief:7"));
}

TEST(ValidateParameterServerCluster, TakesAClusterWithPsAndWorkers) {
  EXPECT_EQ(of_ps(kPs, "chief", 0), "accepted");
  EXPECT_EQ(of_ps({{"worker", {"a:1"}}, {"ps", {"p:1"}}}), "accepted");
}

// Such a cluster was accepted, and the second server found its port in use.
TEST(ValidateParameterServerCluster, LocalhostIsTheLoopbackAddress) {
  EXPECT_THAT(of_ps({{"worker", {"127.0.0.1:1"}}, {"ps", {"localhost:1"}}}),
              AllOf(HasSubstr("got \"127.0.0.1:1\" for both ps:0 and worker:0"),
                    HasSubstr("the first calls it \"localhost:1\"")));
  EXPECT_THAT(of_ps({{"worker", {"localhost:1"}}, {"ps", {"[::1]:1"}}}), HasSubstr("for both"));
  EXPECT_THAT(of_ps({{"worker", {"Host:1"}}, {"ps", {"host:01"}}}), HasSubstr("for both"));
  EXPECT_EQ(of_ps({{"worker", {"127.0.0.1:1"}}, {"ps", {"[::1]:1"}}}), "accepted");
  EXPECT_EQ(of_ps({{"worker", {"127.0.0.1:1"}}, {"ps", {"localhost:2"}}}), "accepted");
}

TEST(ValidateParameterServerCluster, ComplainsInTheOrderOfTheOriginal) {
  EXPECT_THAT(of_ps({}), HasSubstr("got an empty one; set TF_CONFIG"));
  EXPECT_THAT(of_ps({{"foo", {"f:1"}}}, "bar", 3), HasSubstr("\"foo\""));
  EXPECT_THAT(of_ps({{"chief", {"c:1"}}}, "chief", 3), HasSubstr("chief:3"));
  EXPECT_THAT(of_ps({{"chief", {"c:1"}}}, "chief", 0), HasSubstr("at least one ps"));
  EXPECT_THAT(of_ps({{"ps", {"c:1"}}}), HasSubstr("at least one worker"));
  EXPECT_THAT(of_ps({{"ps", {}}, {"worker", {"a:1"}}}), HasSubstr("at least one ps"));
}

// Regression: a server of version 1 refused a chief that trains by itself.
TEST(ValidateServerCluster, TakesAChiefWithoutWorkers) {
  const Jobs jobs{{"ps", {"p:1"}}, {"chief", {"c:1"}}};
  EXPECT_EQ(complaint(&validate_server_cluster, ClusterSpec(jobs), "ps", 0), "accepted");
  EXPECT_THAT(complaint(&validate_server_cluster, ClusterSpec({{"ps", {"p:1"}}}), "ps", 0),
              HasSubstr("at least one worker"));
  EXPECT_THAT(of_ps(jobs, "chief", 0), HasSubstr("at least one worker"));
}

TEST(ValidateParameterServerCluster, RefusesOneAddressForTwoTasks) {
  EXPECT_THAT(of_ps({{"worker", {"a:1", "a:1"}}, {"ps", {"p:1"}}}),
              HasSubstr("got \"a:1\" for both worker:0 and worker:1; give one"));
  EXPECT_THAT(of_ps({{"worker", {"a:1"}}, {"ps", {"a:1"}}}),
              HasSubstr("for both ps:0 and worker:0"));
}

TEST(ValidateParameterServerCluster, RefusesHoles) {
  const ClusterSpec spec =
      ClusterSpec::from_tasks({{"worker", {{0, "a:1"}, {2, "c:1"}}}, {"ps", {{0, "p:1"}}}});
  EXPECT_THAT(complaint(&validate_parameter_server_cluster, spec, {}, {}),
              HasSubstr("job \"worker\" numbered 0, 1, … without holes"));
}

std::string of_address(const std::string& worker) {
  try {
    validate_addresses(ClusterSpec{{"worker", {"a:1", worker}}, {"ps", {"p:1"}}});
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

TEST(ValidateAddresses, TakesHostsAndPorts) {
  for (const char* address : {"host:1", "127.0.0.1:65535", "[::1]:80", "a-b.c_d:08"}) {
    EXPECT_EQ(of_address(address), "accepted") << address;
  }
}

TEST(ValidateAddresses, RefusesWhatNobodyCanConnectTo) {
  for (const char* address :
       {"", "host", "host:", ":1", "host:0", "host:65536", "host:123456", "host:http", "host:-1",
        "host:1 ", "::1:80", "[]:80", "http://host:80", "host:80/path", "a@b:1"}) {
    EXPECT_THAT(of_address(address),
                AllOf(HasSubstr("a port of 1 to 65535 as the address of worker:1, got \"" +
                                std::string(address) + "\""),
                      HasSubstr("correct it in the cluster of TF_CONFIG")));
  }
}

TEST(ValidateAddresses, AsksNothingOfTasksThatServeNobody) {
  EXPECT_NO_THROW(validate_addresses(
      ClusterSpec{{"chief", {"x"}}, {"evaluator", {"y"}}, {"worker", {"a:1"}}, {"ps", {"p:1"}}}));
}

}  // namespace
}  // namespace cohort
