// SPDX-License-Identifier: Apache-2.0
// Which clusters MultiWorkerMirroredStrategy takes, and when rebuild() may be called.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <chrono>
#include <cstdlib>
#include <future>
#include <memory>
#include <optional>
#include <thread>

#include "cohort/cluster/cluster_resolver.h"
#include "cohort/data/dataset.h"
#include "cohort/strategy/synchronous_strategy.h"
#include "cohort/synchronous/workers/fake_groups.h"
#include "cohort/testing/on_workers.h"
#include "cohort/testing/throws_error.h"
#include "cohort/testing/warnings.h"

namespace cohort {
namespace {

using testing::FakeFormations;
using testing::strategy_of_task;
using testing::throws_error;

SimpleResolver resolver_of(ClusterSpec spec, std::optional<std::string> type = {},
                           std::optional<std::int64_t> id = {}) {
  return {std::move(spec), {.task_type = std::move(type), .task_id = id}};
}

void expect_refusal(const ClusterResolver& resolver, const std::string& words) {
  EXPECT_THAT([&] { MultiWorkerMirroredStrategy(resolver, {.devices = {"CPU:0"}}); },
              throws_error(ErrorCode::invalid_argument, words));
}

TEST(MultiWorkerMirroredStrategyCluster, RefusesAnUnknownOwnTask) {
  const ClusterSpec spec{{"worker", {"a:1", "b:1"}}};
  expect_refusal(resolver_of(spec), "got no type; set task.type and task.index in TF_CONFIG");
  expect_refusal(resolver_of(spec, "worker"), "got no index");
  expect_refusal(resolver_of(spec, "worker", 2), "expected the own task worker:2 in the cluster");
  expect_refusal(resolver_of(spec, "master", 0), "expected one of chief, worker, ps, evaluator");
}

TEST(MultiWorkerMirroredStrategyCluster, RefusesParameterServers) {
  const ClusterSpec spec{{"chief", {"c:1"}}, {"worker", {"a:1"}}, {"ps", {"b:1"}}};
  expect_refusal(resolver_of(spec, "worker", 0), "`cohort launch --ps 0`");
  expect_refusal(resolver_of(spec, "ps", 0), "belong to ParameterServerStrategy");
}

TEST(MultiWorkerMirroredStrategyCluster, RefusesAddressesThatCannotBe) {
  expect_refusal(resolver_of({{"worker", {"a:1", "a:1"}}}, "worker", 0),
                 "expected a different address for each task");
  expect_refusal(resolver_of({{"chief", {"a"}}, {"worker", {"b:1"}}}, "worker", 0),
                 "as the address of chief:0, got \"a\"");
  expect_refusal(resolver_of({{"evaluator", {"e:1"}}, {"worker", {}}}, "worker", 0),
                 "expected the own task worker:0");
}

TEST(MultiWorkerMirroredStrategyCluster, RefusesOptionsBeforeItWaits) {
  const SimpleResolver resolver = resolver_of({{"worker", {"a:1", "b:1"}}}, "worker", 0);
  EXPECT_THAT(
      [&] { MultiWorkerMirroredStrategy(resolver, {.communication = {.bytes_per_pack = -1}}); },
      throws_error(ErrorCode::invalid_argument, "bytes_per_pack"));
  EXPECT_THAT([&] { MultiWorkerMirroredStrategy(resolver, {.devices = {"GPU:99"}}); },
              throws_error(ErrorCode::invalid_argument, "GPU:99"));
}

// As TensorFlow does without GPUs.
TEST(MultiWorkerMirroredStrategyCluster, WarnsThatNcclIsNotUsed) {
  const SimpleResolver none = resolver_of({});
  MultiWorkerMirroredOptions options{.devices = {"CPU:0"}};
  testing::Warnings warnings;
  options.communication.implementation = CommunicationImplementation::ring;
  const MultiWorkerMirroredStrategy strategy(none, options);
  EXPECT_EQ(warnings.text(), "");
  options.communication.implementation = CommunicationImplementation::nccl;
  const MultiWorkerMirroredStrategy other(none, options);
  EXPECT_THAT(warnings.text(), ::testing::HasSubstr("got NCCL, which Cohort does not use"));
}

// Without a cluster, and as an evaluator, which is a cluster of its own.
TEST(MultiWorkerMirroredStrategyCluster, IsOneWorkerAlone) {
  const SimpleResolver none = resolver_of({});
  const SimpleResolver evaluator = resolver_of({{"worker", {"a:1", "b:1"}}}, "evaluator", 0);
  for (const SimpleResolver& resolver : {none, evaluator}) {
    MultiWorkerMirroredStrategy strategy(resolver, {.devices = {"CPU:0", "CPU:1"}});
    EXPECT_EQ(strategy.num_workers(), 1);
    EXPECT_EQ(strategy.worker(), 0);
    EXPECT_EQ(strategy.num_replicas_in_sync(), 2);
    EXPECT_TRUE(strategy.extended().should_checkpoint());
    const Variable v = strategy.variable("v", torch::ones({}));
    strategy.rebuild();  // there is nobody to wait for
    EXPECT_EQ(v.read().item<float>(), 1);
    ASSERT_NE(strategy.cluster_resolver(), nullptr);
    EXPECT_EQ(strategy.cluster_resolver()->cluster_spec(), resolver.cluster_spec());
    EXPECT_EQ(strategy.cluster_resolver()->task_type(), resolver.task_type());
  }
}

// The strategy asked for the address of an evaluator that the cluster does not list.
TEST(MultiWorkerMirroredStrategyCluster, NeedsNoAddressOfAnEvaluator) {
  ::setenv("TF_CONFIG",
           R"({"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "evaluator", "index": 0}})",
           1);
  const MultiWorkerMirroredStrategy strategy({.devices = {"CPU:0"}});
  ::unsetenv("TF_CONFIG");
  EXPECT_EQ(strategy.num_workers(), 1);
  EXPECT_EQ(strategy.cluster_resolver()->master(), "");
}

class Rebuild : public ::testing::Test {
 protected:
  std::unique_ptr<MultiWorkerMirroredStrategy> made(int task) {
    return strategy_of_task(formations_, task,
                            {.devices = {"CPU:0"}, .timeout = std::chrono::seconds(30)});
  }

  std::shared_ptr<FakeFormations> formations_ = std::make_shared<FakeFormations>();
};

TEST_F(Rebuild, ChangesTheNumbersOfWorkers) {
  formations_->expect({0, 1, 2});
  testing::on_workers<int>(3, [&](int task) {
    const auto strategy = made(task);
    EXPECT_EQ(strategy->num_workers(), 3);
    strategy->reduce("sum", torch::ones({}));
    if (task == 0) {
      formations_->expect({1, 2});
      return 0;
    }
    while (strategy->num_workers() == 3) {
      try {
        strategy->reduce("sum", torch::ones({}));  // until worker 0 is gone
      } catch (const Error&) {
        strategy->rebuild();
      }
    }
    EXPECT_EQ(strategy->num_workers(), 2);
    EXPECT_EQ(strategy->worker(), task - 1);
    EXPECT_EQ(strategy->num_replicas_in_sync(), 2);
    EXPECT_EQ(strategy->extended().should_checkpoint(), task == 1);  // the first that is left
    EXPECT_EQ(strategy->reduce("sum", torch::ones({})).item<float>(), 2);
    return 0;
  });
}

// Regression: a dataset was refused after rebuild(), and one that was made again began with the
// order of the first pass.
TEST_F(Rebuild, KeepsDistributedDatasets) {
  formations_->expect({0});
  const auto strategy = made(0);
  const auto dataset = strategy->distribute_dataset(Dataset::range(4).batch(2));
  DistributedIterator iterator = dataset.iterator();
  formations_->expect({0});
  strategy->rebuild();
  EXPECT_THAT([&] { iterator.try_next(); },
              throws_error(ErrorCode::failed_precondition, "take a new one from the same"));
  EXPECT_EQ(dataset.next_pass(), 1);
  iterator = dataset.iterator();
  EXPECT_TRUE(iterator.try_next().has_value());
  EXPECT_EQ(dataset.next_pass(), 2);
  formations_->expect({0, 1});
  EXPECT_THROW(strategy->rebuild(std::chrono::milliseconds(1)), Error);
  EXPECT_THAT([&] { dataset.iterator(); },
              throws_error(ErrorCode::failed_precondition, "call it again before"));
}

std::vector<std::int64_t> numbers_of(const DistributedDataset& dataset) {
  std::vector<std::int64_t> numbers;
  for (const DistributedElement& step : dataset) {
    const at::Tensor& own = step[0].tensor();
    for (std::int64_t i = 0; i < own.numel(); ++i) numbers.push_back(own[i].item<std::int64_t>());
  }
  return numbers;
}

// The numbers that worker 0 or 1 of two gets in pass `pass`, taken from a pass of one process.
std::vector<std::int64_t> expected_of(const Dataset& dataset, std::uint64_t pass, int worker) {
  const auto alone = MirroredStrategy({"CPU:0", "CPU:1"}).distribute_dataset(dataset);
  alone.set_next_pass(pass);
  std::vector<std::int64_t> numbers;
  for (const DistributedElement& step : alone) {
    const at::Tensor& own = step[static_cast<std::size_t>(worker)].tensor();
    for (std::int64_t i = 0; i < own.numel(); ++i) numbers.push_back(own[i].item<std::int64_t>());
  }
  return numbers;
}

// Worker 0 comes back after two passes, and makes its dataset when the other one has it already.
TEST_F(Rebuild, GoesOnWithThePassesOfTheOthers) {
  for (const bool is_function : {false, true}) {
    const Dataset shuffled = Dataset::range(16).shuffle(16, {.seed = 3}).batch(4);
    const auto distributed = [&](SynchronousStrategy& strategy) {
      if (!is_function) return strategy.distribute_dataset(shuffled);
      return strategy.distribute_datasets_from_function([&](const InputContext& context) {
        return Dataset::range(16).shuffle(16, {.seed = 3}).shard(context).batch(2);
      });
    };
    formations_->expect({0, 1});
    std::promise<void> may_come_back;
    testing::on_workers<int>(2, [&](int task) {
      auto strategy = made(task);
      std::optional<DistributedDataset> dataset = distributed(*strategy);
      for (int pass = 0; pass < 2; ++pass) numbers_of(*dataset);
      strategy->reduce("sum", torch::ones({}));
      if (task == 0) {
        dataset.reset();
        strategy.reset();  // the process ends, and starts again
        may_come_back.get_future().wait();
        strategy = made(task);
        dataset = distributed(*strategy);
      } else {
        formations_->expect({0, 1}, {0});
        may_come_back.set_value();
        strategy->rebuild();
      }
      for (std::uint64_t pass = 2; pass < 4; ++pass) {
        const std::vector<std::int64_t> numbers = numbers_of(*dataset);
        EXPECT_EQ(numbers.size(), 8);
        if (!is_function) {
          EXPECT_EQ(numbers, expected_of(shuffled, pass, task));
        }
        EXPECT_EQ(dataset->next_pass(), pass + 1);
      }
      strategy->reduce("sum", torch::ones({}));
      return 0;
    });
    formations_ = std::make_shared<FakeFormations>();
  }
}

TEST_F(Rebuild, KeepsRunsOutUntilItHasSucceeded) {
  formations_->expect({0});
  const auto strategy = made(0);
  const Variable v = strategy->variable("v", torch::ones({}));
  formations_->expect({0, 1});
  EXPECT_THAT([&] { strategy->rebuild(std::chrono::milliseconds(1)); },
              throws_error(ErrorCode::deadline_exceeded, "waited for other tasks"));
  EXPECT_THAT([&] { strategy->run([] {}); },
              throws_error(ErrorCode::failed_precondition, "call rebuild() again"));
  formations_->expect({0});
  strategy->rebuild();
  strategy->run([&] { EXPECT_EQ(v.read().item<float>(), 1); });
}

TEST_F(Rebuild, IsRefusedInAReplicaAndBesideARun) {
  formations_->expect({0});
  const auto strategy = made(0);
  EXPECT_THAT([&] { strategy->run([&] { strategy->rebuild(); }); },
              throws_error(ErrorCode::failed_precondition, "got one in a replica"));
  std::promise<void> has_begun, may_end;
  std::thread other([&] {
    strategy->run([&] {
      has_begun.set_value();
      may_end.get_future().wait();
    });
  });
  has_begun.get_future().wait();
  EXPECT_THAT([&] { strategy->rebuild(); },
              throws_error(ErrorCode::failed_precondition, "call it between two runs"));
  may_end.set_value();
  other.join();
  strategy->run([] {});  // goes on
  MirroredStrategy another({"CPU:0"});
  const auto scope = another.scope();
  EXPECT_THAT([&] { strategy->rebuild(); }, throws_error(ErrorCode::failed_precondition, "mixing"));
}

TEST_F(Rebuild, IsUnimplementedForAGivenGroup) {
  const InProcessWorkers workers(1);
  MultiWorkerMirroredStrategy strategy(workers.group(0), {.devices = {"CPU:0"}});
  EXPECT_THAT([&] { strategy.rebuild(); },
              throws_error(ErrorCode::unimplemented, "make the strategy from a ClusterResolver"));
}

}  // namespace
}  // namespace cohort
