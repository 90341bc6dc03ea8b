// SPDX-License-Identifier: Apache-2.0
#include "cohort/estimator/run_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "cohort/core/error.h"
#include "cohort/strategy/parameter_server_strategy.h"
#include "cohort/strategy/synchronous_strategy.h"
#include "cohort/testing/throws_error.h"
#include "cohort/testing/warnings.h"

namespace cohort::estimator {
namespace {

using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::throws_error;

const std::string kJobs =
    R"("chief": ["h0:1"], "worker": ["h1:1", "h2:1", "h3:1"], "ps": ["h4:1", "h5:1"])";

// TF_CONFIG while it exists.
class ConfigOfRun : public ::testing::Test {
 protected:
  ~ConfigOfRun() override { ::unsetenv("TF_CONFIG"); }
  static void set(const std::string& text) { ::setenv("TF_CONFIG", text.c_str(), 1); }
  // With the cluster of these jobs, and further keys.
  static RunConfig config_of(const std::string& type, const std::string& index,
                             const std::string& jobs = kJobs, const std::string& keys = "",
                             RunConfigOptions options = {.model_dir = "model"}) {
    set(R"({"cluster": {)" + jobs + R"(}, "task": {"type": ")" + type + R"(", "index": )" + index +
        "}" + keys + "}");
    return RunConfig(std::move(options));
  }
  static void expect_refused(const std::string& type, const std::string& index,
                             const std::string& jobs, const std::string& words) {
    EXPECT_THAT([&] { config_of(type, index, jobs); },
                throws_error(ErrorCode::invalid_argument, words));
  }
  static void expect_refused(const RunConfigOptions& options, const std::string& words) {
    EXPECT_THAT([&] { RunConfig(RunConfigOptions(options)); },
                throws_error(ErrorCode::invalid_argument, words));
  }
};

// Specification 7.1, in its order.
TEST_F(ConfigOfRun, ClusterHasExactlyOneChief) {
  expect_refused("worker", "0", R"("worker": ["h1:1"])", "exactly one 'chief' task");
  expect_refused("chief", "0", R"("chief": ["h0:1", "h1:1"])", "exactly one 'chief' task");
}

TEST_F(ConfigOfRun, TaskHasTypeAndIndex) {
  set(R"({"cluster": {"chief": ["h0:1"]}, "task": {"index": 0}})");
  expect_refused({.model_dir = "model"}, "type");
  set(R"({"cluster": {"chief": ["h0:1"]}, "task": {"type": "chief"}})");
  expect_refused({.model_dir = "model"}, "task.index");
  set(R"({"cluster": {"chief": ["h0:1"]}})");
  expect_refused({.model_dir = "model"}, "task.type");
}

TEST_F(ConfigOfRun, IndexIsInTheJob) {
  expect_refused("worker", "-1", kJobs, "-1");
  expect_refused("worker", "9", kJobs, "worker:9");
  expect_refused("reader", "0", kJobs, "reader:0");
}

TEST_F(ConfigOfRun, EvaluatorIsNoPartOfTheCluster) {
  const RunConfig config = config_of("evaluator", "7");
  EXPECT_EQ(config.task_type(), "evaluator");
  EXPECT_EQ(config.task_id(), 7);
  EXPECT_FALSE(config.cluster_spec());
  EXPECT_EQ(config.num_ps_replicas(), 0);
  EXPECT_EQ(config.num_worker_replicas(), 0);
  EXPECT_EQ(config.master(), "");
  EXPECT_EQ(config.global_id_in_cluster(), std::nullopt);
  EXPECT_FALSE(config.is_chief());
  EXPECT_THAT(config.device_filters(), IsEmpty());
}

TEST_F(ConfigOfRun, IsLocalWithoutACluster) {
  for (const char* const text : {"{}", R"({"task": {"type": "worker", "index": 0}})"}) {
    set(text);
    const RunConfig config({.model_dir = "model"});
    EXPECT_EQ(config.task_type(), "worker");
    EXPECT_EQ(config.task_id(), 0);
    EXPECT_TRUE(config.is_chief());
    EXPECT_EQ(config.num_worker_replicas(), 1);
    EXPECT_EQ(config.num_ps_replicas(), 0);
    EXPECT_EQ(config.global_id_in_cluster(), 0);
    EXPECT_EQ(config.master(), "");
    EXPECT_EQ(config.coordinator_mode(), CoordinatorMode::none);
    EXPECT_THAT(config.device_filters(), IsEmpty());
  }
}

TEST_F(ConfigOfRun, OnlyWorkerZeroNeedsNoCluster) {
  set(R"({"task": {"type": "chief", "index": 0}})");
  expect_refused({.model_dir = "model"}, "'chief'");
  set(R"({"task": {"type": "evaluator", "index": 0}})");
  expect_refused({.model_dir = "model"}, "'evaluator'");
  set(R"({"task": {"type": "worker", "index": 1}})");
  expect_refused({.model_dir = "model"}, "got 1");
}

TEST_F(ConfigOfRun, ServiceIsAnObject) {
  set(R"({"service": {"key": 1}})");
  EXPECT_EQ(RunConfig({.model_dir = "model"}).service(), R"({"key":1})");
  set(R"({"service": 924})");
  try {
    const RunConfig config({.model_dir = "model"});
    FAIL() << config.service().value_or("none");
  } catch (const Error& error) {
    EXPECT_EQ(error.cause(), ErrorCause::wrong_type);
    EXPECT_THAT(error.message(), HasSubstr("924"));
  }
}

TEST_F(ConfigOfRun, MasterReplacesTheChief) {
  const std::string jobs = R"("master": ["h0:1"], "worker": ["h1:1"], "ps": ["h2:1"])";
  const RunConfig config = config_of("master", "0", jobs);
  EXPECT_TRUE(config.is_chief());
  EXPECT_EQ(config.num_worker_replicas(), 2);
  EXPECT_EQ(config.global_id_in_cluster(), 0);
  EXPECT_THAT(config.device_filters(), ElementsAre("/job:ps", "/job:master"));
  EXPECT_FALSE(config_of("worker", "0", jobs).is_chief());
  expect_refused("worker", "0", R"("master": ["h0:1"], "chief": ["h1:1"], "worker": ["h2:1"])",
                 "remove the master");
  expect_refused("evaluator", "0", jobs, "rename the master");
}

TEST_F(ConfigOfRun, MasterAddress) {
  EXPECT_EQ(config_of("worker", "1").master(), "grpc://h2:1");
  EXPECT_EQ(config_of("ps", "1").master(), "grpc://h5:1");
  EXPECT_EQ(config_of("chief", "0", R"("chief": ["h0:1"])").master(), "");
  EXPECT_EQ(config_of("worker", "1", kJobs, R"(, "session_master": "s:1")").master(), "s:1");
  set(R"({"session_master": "s:1", "eval_session_master": "e:1"})");
  EXPECT_EQ(RunConfig({.model_dir = "model"}).master(), "s:1");
  EXPECT_EQ(RunConfig({.model_dir = "model"}).evaluation_master(), "e:1");
}

TEST_F(ConfigOfRun, OnlyEvaluatorsHaveAnEvaluationMaster) {
  const std::string key = R"(, "eval_session_master": "e:1")";
  EXPECT_EQ(config_of("evaluator", "0", kJobs, key).evaluation_master(), "e:1");
  EXPECT_THAT([&] { config_of("worker", "0", kJobs, key); },
              throws_error(ErrorCode::invalid_argument, "eval_session_master"));
}

TEST_F(ConfigOfRun, GlobalIdsBeginWithTheChiefAndEndWithServers) {
  EXPECT_EQ(config_of("chief", "0").global_id_in_cluster(), 0);
  for (int i = 0; i < 3; ++i)
    EXPECT_EQ(config_of("worker", std::to_string(i)).global_id_in_cluster(), 1 + i);
  for (int i = 0; i < 2; ++i)
    EXPECT_EQ(config_of("ps", std::to_string(i)).global_id_in_cluster(), 4 + i);
  EXPECT_EQ(
      config_of("reader", "1", kJobs + R"(, "reader": ["r:1", "r:2"])").global_id_in_cluster(), 2);
}

TEST_F(ConfigOfRun, CountsTheChiefAsAWorker) {
  const RunConfig config = config_of("worker", "2");
  EXPECT_EQ(config.num_worker_replicas(), 4);
  EXPECT_EQ(config.num_ps_replicas(), 2);
  EXPECT_FALSE(config.is_chief());
}

TEST_F(ConfigOfRun, DeviceFilters) {
  EXPECT_THAT(config_of("chief", "0").device_filters(), ElementsAre("/job:ps", "/job:chief"));
  EXPECT_THAT(config_of("worker", "2").device_filters(),
              ElementsAre("/job:ps", "/job:worker/task:2"));
  EXPECT_THAT(config_of("ps", "0").device_filters(),
              ElementsAre("/job:ps", "/job:worker", "/job:chief", "/job:master"));
}

TEST_F(ConfigOfRun, Defaults) {
  const RunConfig config({.model_dir = "model"});
  EXPECT_EQ(config.save_checkpoints_interval(), seconds(600));
  EXPECT_EQ(config.options().keep_checkpoint_max, 5);
  EXPECT_EQ(config.options().save_summary_steps, 100);
  EXPECT_EQ(config.options().log_step_count_steps, 100);
  EXPECT_EQ(config.options().session_creation_timeout, seconds(7200));
  EXPECT_EQ(config.options().keep_checkpoint_every, Duration::zero());
  EXPECT_EQ(config.max_worker_delay(), seconds(60));
  EXPECT_EQ(config.options().random_seed, 1U);
}

TEST_F(ConfigOfRun, SavesByStepsOrByTime) {
  expect_refused({.save_checkpoints_steps = 10, .save_checkpoints_interval = seconds(9)},
                 "got both: 10 and 9 s");
  EXPECT_EQ(RunConfig({.model_dir = "m", .save_checkpoints_steps = 7}).save_checkpoints_interval(),
            std::nullopt);
  EXPECT_TRUE(RunConfig({.model_dir = "m", .save_checkpoints_steps = 7}).saves_checkpoints());
  EXPECT_FALSE(RunConfig({.model_dir = "m", .save_checkpoints_steps = 0}).saves_checkpoints());
  EXPECT_FALSE(
      RunConfig({.model_dir = "m", .save_checkpoints_interval = seconds(0)}).saves_checkpoints());
}

TEST_F(ConfigOfRun, RefusesOptionsOutOfRange) {
  expect_refused({.save_summary_steps = -1}, "save_summary_steps >= 0, got -1");
  expect_refused({.save_checkpoints_steps = -2}, "save_checkpoints_steps >= 0, got -2");
  expect_refused({.save_checkpoints_interval = seconds(-3)}, "save_checkpoints_interval >= 0");
  expect_refused({.keep_checkpoint_max = -1}, "keep_checkpoint_max >= 0");
  expect_refused({.keep_checkpoint_every = seconds(-1)}, "keep_checkpoint_every >= 0");
  expect_refused({.log_step_count_steps = 0}, "log_step_count_steps > 0, got 0");
  expect_refused({.session_creation_timeout = seconds(0)}, "session_creation_timeout > 0");
  expect_refused({.max_worker_delay = seconds(-1)}, "max_worker_delay >= 0");
}

TEST_F(ConfigOfRun, ModelDirComesFromOnePlace) {
  set(R"({"model_dir": "there"})");
  EXPECT_EQ(RunConfig().model_dir(), "there");
  EXPECT_EQ(RunConfig({.model_dir = "there"}).model_dir(), "there");
  expect_refused({.model_dir = "here"}, "'here' as option and 'there'");
  set(R"({"model_dir": ""})");
  expect_refused({}, "model_dir");
}

TEST_F(ConfigOfRun, MakesAFolderWithAWarning) {
  testing::Warnings warnings;
  const std::string folder = RunConfig().model_dir();
  EXPECT_TRUE(std::filesystem::is_directory(folder));
  EXPECT_EQ(warnings.count(folder), 1);
  std::filesystem::remove(folder);
  EXPECT_THAT([] { config_of("chief", "0", kJobs, "", {}); },
              throws_error(ErrorCode::invalid_argument, "a model_dir"));
}

// Specification 7.2.
TEST_F(ConfigOfRun, HasEachStrategyOnce) {
  OneDeviceStrategy strategy;
  const DistributeConfig both{.train_distribute = &strategy, .eval_distribute = &strategy};
  expect_refused({.train_distribute = &strategy, .experimental_distribute = both},
                 "train_distribute or experimental_distribute.train_distribute");
  expect_refused({.eval_distribute = &strategy, .experimental_distribute = both},
                 "eval_distribute or experimental_distribute.eval_distribute");
  const RunConfig config({.model_dir = "model", .experimental_distribute = both});
  EXPECT_EQ(config.train_distribute(), &strategy);
  EXPECT_EQ(config.eval_distribute(), &strategy);
}

TEST_F(ConfigOfRun, RemoteClusterIsOfAStandaloneClient) {
  OneDeviceStrategy strategy;
  const DistributeConfig remote{.train_distribute = &strategy,
                                .remote_cluster = ClusterSpec{{"worker", {"h1:1"}}}};
  const RunConfig config({.model_dir = "model", .experimental_distribute = remote});
  EXPECT_EQ(config.coordinator_mode(), CoordinatorMode::standalone_client);
  EXPECT_THAT([&] { config_of("chief", "0", kJobs, "", {.experimental_distribute = remote}); },
              throws_error(ErrorCode::invalid_argument, "got both"));
  ::unsetenv("TF_CONFIG");
  expect_refused({.experimental_distribute = {.remote_cluster = ClusterSpec{{"worker", {"h"}}}}},
                 "expected train_distribute");
}

TEST_F(ConfigOfRun, TasksAreCoordinatedOnlyWithClusterAndStrategy) {
  OneDeviceStrategy strategy;
  const RunConfigOptions options{.model_dir = "model", .train_distribute = &strategy};
  EXPECT_EQ(RunConfig(options).coordinator_mode(), CoordinatorMode::none);
  EXPECT_EQ(config_of("chief", "0").coordinator_mode(), CoordinatorMode::none);
  const std::string master = R"("master": ["h0:1"], "worker": ["h1:1"])";
  EXPECT_EQ(config_of("master", "0", master, "", options).coordinator_mode(),
            CoordinatorMode::none);
  EXPECT_EQ(config_of("chief", "0", kJobs, "", options).coordinator_mode(),
            CoordinatorMode::independent_worker);
}

TEST_F(ConfigOfRun, CoordinatedWorkersNeedNoChief) {
  OneDeviceStrategy strategy;
  const RunConfigOptions options{.model_dir = "model", .train_distribute = &strategy};
  const std::string jobs = R"("worker": ["h1:1", "h2:1"])";
  const RunConfig first = config_of("worker", "0", jobs, "", options);
  EXPECT_TRUE(first.is_chief());
  EXPECT_EQ(first.num_worker_replicas(), 2);
  EXPECT_EQ(first.master(), "grpc://h1:1");
  const RunConfig second = config_of("worker", "1", jobs, "", options);
  EXPECT_FALSE(second.is_chief());
  EXPECT_EQ(second.global_id_in_cluster(), 1);
  EXPECT_FALSE(config_of("evaluator", "0", jobs, "", options).cluster_spec());
  EXPECT_THAT([&] { config_of("worker", "2", jobs, "", options); },
              throws_error(ErrorCode::invalid_argument, "worker:2"));
}

// tf refuses this strategy (version 2) with an Estimator; see docs/decisions/0165.
TEST_F(ConfigOfRun, CoordinatorNeedsNoTask) {
  const ClusterSpec spec{{"worker", {"h1:1"}}, {"ps", {"h2:1"}}};
  const auto resolver = std::make_shared<SimpleResolver>(spec);
  ParameterServerStrategy strategy{*resolver};
  const RunConfig config(
      {.model_dir = "model", .train_distribute = &strategy, .cluster_resolver = resolver});
  EXPECT_EQ(config.coordinator_mode(), CoordinatorMode::independent_worker);
  EXPECT_EQ(config.task_type(), "chief");
  EXPECT_TRUE(config.is_chief());
  EXPECT_EQ(config.master(), "");
  // Without the resolver, this process acts as one alone.
  const RunConfig alone({.model_dir = "model", .train_distribute = &strategy});
  EXPECT_EQ(alone.coordinator_mode(), CoordinatorMode::none);
  EXPECT_EQ(alone.task_type(), "worker");
}

TEST_F(ConfigOfRun, IsMadeOutsideOfReplicas) {
  MirroredStrategy strategy({"CPU:0"});
  EXPECT_THAT([&] { strategy.run([] { const RunConfig config({.model_dir = "model"}); }); },
              throws_error(ErrorCode::failed_precondition, "outside of run()"));
}

TEST_F(ConfigOfRun, ResolverOfTheOptionsComesFirst) {
  set(R"({"cluster": {"chief": ["other:1"]}, "task": {"type": "chief", "index": 0}})");
  const auto resolver = std::make_shared<SimpleResolver>(
      ClusterSpec{{"chief", {"h0:1"}}, {"worker", {"h1:1"}}},
      SimpleResolver::Options{.task_type = "worker", .task_id = 0});
  const RunConfig config({.model_dir = "model", .cluster_resolver = resolver});
  EXPECT_EQ(config.master(), "grpc://h1:1");
}

}  // namespace
}  // namespace cohort::estimator
