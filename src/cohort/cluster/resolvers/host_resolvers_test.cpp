// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "cohort/cluster/resolvers.h"
#include "cohort/testing/throws_error.h"

namespace cohort {
namespace {

using testing::throws_error;

KubernetesResolverOptions two_jobs() {
  KubernetesResolverOptions options;
  options.selectors = {{"ps", {"role=ps"}}, {"worker", {"role=b", "role=a"}}};
  options.pods = [](const std::string& selector) -> std::vector<KubernetesPod> {
    if (selector == "role=ps") return {{"p", "Running", "10.0.0.9"}};
    if (selector == "role=a") return {{"a", "Running", "10.0.0.3"}};
    return {{"y", "Running", "10.0.0.2"}, {"x", "Running", "10.0.0.1"}};
  };
  return options;
}

TEST(KubernetesResolver, HasThePodsOfTheSelectors) {
  KubernetesResolver resolver(two_jobs());
  EXPECT_EQ(resolver.cluster_spec(),
            ClusterSpec({{"ps", {"10.0.0.9:8470"}},
                         {"worker", {"10.0.0.1:8470", "10.0.0.2:8470", "10.0.0.3:8470"}}}));
  EXPECT_EQ(resolver.master(), "");
  resolver.set_task_type("worker");
  resolver.set_task_id(2);
  EXPECT_EQ(resolver.master(), "grpc://10.0.0.3:8470");
}

TEST(KubernetesResolver, RefusesPodsThatDoNotRun) {
  KubernetesResolverOptions options = two_jobs();
  options.pods = [](const std::string&) -> std::vector<KubernetesPod> {
    return {{"x", "Running", "h"}, {"y", "Pending", "i"}};
  };
  const KubernetesResolver resolver(options);
  EXPECT_THAT([&] { resolver.cluster_spec(); },
              throws_error(ErrorCode::failed_precondition, "pod 'y' in phase 'Pending'"));
}

TEST(KubernetesResolver, NeedsAListAndAPort) {
  EXPECT_THAT([] { KubernetesResolver({}); },
              throws_error(ErrorCode::invalid_argument, "KubernetesResolverOptions::pods"));
  KubernetesResolverOptions options = two_jobs();
  options.port = 0;
  EXPECT_THAT([&] { KubernetesResolver{options}; },
              throws_error(ErrorCode::invalid_argument, "KubernetesResolverOptions::port, got 0"));
}

TEST(GceResolver, HasTheInstancesThatRun) {
  GceResolver resolver({.instances =
                            [] {
                              return std::vector<GceInstance>{{"a", "RUNNING", "10.0.0.9"},
                                                              {"b", "STOPPED", "10.0.0.1"},
                                                              {"c", "RUNNING", "10.0.0.5"}};
                            },
                        .port = 9});
  EXPECT_EQ(resolver.cluster_spec(), ClusterSpec({{"worker", {"10.0.0.5:9", "10.0.0.9:9"}}}));
  EXPECT_EQ(resolver.master(), "grpc://10.0.0.5:9");
  resolver.set_task_id(1);
  EXPECT_EQ(resolver.task(), (TaskId{"worker", 1}));
  EXPECT_THAT([&] { resolver.set_task_type("ps"); },
              throws_error(ErrorCode::failed_precondition, "job 'worker' of the constructor"));
}

TEST(GceResolver, NeedsAListAndAPort) {
  EXPECT_THAT([] { GceResolver({.port = 1}); },
              throws_error(ErrorCode::invalid_argument, "GceResolverOptions::instances"));
  EXPECT_THAT([] { GceResolver({.instances = [] { return std::vector<GceInstance>(); }}); },
              throws_error(ErrorCode::invalid_argument, "GceResolverOptions::port, got 0"));
}

class SageMaker : public ::testing::Test {
 protected:
  void TearDown() override {
    ::unsetenv("SM_HOSTS");
    ::unsetenv("SM_CURRENT_HOST");
  }
  static void set(const char* hosts, const char* own) {
    ::setenv("SM_HOSTS", hosts, 1);
    ::setenv("SM_CURRENT_HOST", own, 1);
  }
  const SageMakerResolver resolver_;
};

TEST_F(SageMaker, HasTheSortedHostsAsWorkers) {
  set(R"(["b", "a"])", "b");
  EXPECT_EQ(resolver_.cluster_spec(), ClusterSpec({{"worker", {"a:2223", "b:2223"}}}));
  EXPECT_EQ(resolver_.task(), (TaskId{"worker", 1}));
  EXPECT_EQ(resolver_.master(), "b:2223");
  set(R"(["a"])", "a");
  EXPECT_EQ(resolver_.master(), "");
}

TEST_F(SageMaker, HasNoClusterForAnotherHost) {
  set(R"(["b", "a"])", "c");
  EXPECT_EQ(resolver_.cluster_spec(), ClusterSpec());
  EXPECT_EQ(resolver_.task(), std::nullopt);
}

TEST_F(SageMaker, RefusesMissingAndWrongVariables) {
  const auto refuses = [&](const char* words) {
    EXPECT_THAT([&] { resolver_.cluster_spec(); },
                throws_error(ErrorCode::invalid_argument, words));
  };
  refuses("SM_HOSTS in the environment");
  for (const char* text : {"", "{}", "[1]", "[\"a\""}) {
    ::setenv("SM_HOSTS", text, 1);
    refuses("JSON list of names in SM_HOSTS");
  }
  ::setenv("SM_HOSTS", "[]", 1);
  refuses("SM_CURRENT_HOST in the environment");
}

}  // namespace
}  // namespace cohort
