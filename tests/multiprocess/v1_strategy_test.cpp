// SPDX-License-Identifier: Apache-2.0
// Tasks of a cluster of version 1, each of which runs its program by itself. Servers and tasks are
// in this process, and the tasks that train are threads or take turns.
#include "cohort/v1/parameter_server_strategy.h"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "cohort/checkpoint/checkpoint.h"
#include "cohort/data/dataset.h"
#include "cohort/optimizer/optimizers.h"
#include "cohort/server/server.h"
#include "cohort/strategy/strategy_extended.h"
#include "cohort/strategy/strategy_function.h"
#include "cohort/testing/cluster/test_cluster.h"
#include "cohort/testing/faulty_proxy.h"
#include "cohort/testing/launcher_environment.h"
#include "cohort/testing/temporary_folder.h"
#include "cohort/testing/throws_error.h"
#include "cohort/testing/warnings.h"
#include "cohort/variable/variable_home.h"

namespace cohort {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::throws_error;
using v1::StrategyOptions;
using V1 = v1::ParameterServerStrategy;

at::Tensor floats(std::vector<float> values) { return torch::tensor(values); }
float number(const Variable& variable) { return variable.read().item<float>(); }
std::int64_t count(const Variable& variable) { return variable.read().item<std::int64_t>(); }

float seen_in_run(V1& strategy, const Variable& variable) {
  return strategy.run([&] { return variable.tensor().detach().clone(); }).value().item<float>();
}

// A chief and a worker, and two servers that may be ended and started again.
class V1Cluster : public ::testing::Test {
 protected:
  static std::string free_address() { return "127.0.0.1:" + std::to_string(testing::free_port()); }
  V1Cluster() {
    for (std::size_t i = 0; i < 2; ++i) start(i);
  }

  SimpleResolver resolver(const std::string& type, std::int64_t index) const {
    return {ClusterSpec(jobs_), {.task_type = type, .task_id = index}};
  }
  void start(std::size_t server) {
    servers_[server] = std::make_unique<Server>(resolver("ps", static_cast<std::int64_t>(server)),
                                                ServerOptions{.handle_signals = false});
  }
  void end(std::size_t server) { servers_[server].reset(); }
  std::unique_ptr<V1> chief(StrategyOptions options = {}) const {
    return std::make_unique<V1>(resolver("chief", 0), std::move(options));
  }
  std::unique_ptr<V1> worker(StrategyOptions options = {}) const {
    return std::make_unique<V1>(resolver("worker", 0), std::move(options));
  }
  // The bytes of values that the servers have sent.
  std::uint64_t bytes_read() const {
    return servers_[0]->health().pulled_bytes + servers_[1]->health().pulled_bytes;
  }

  std::map<std::string, std::vector<std::string>> jobs_ = {
      {"chief", {free_address()}},
      {"worker", {free_address()}},
      {"ps", {free_address(), free_address()}}};
  std::unique_ptr<Server> servers_[2];
};

StrategyOptions two_replicas() { return {.devices = {"CPU:0", "CPU:1"}}; }

// --- making and finding variables ----------------------------------------------------------------

TEST_F(V1Cluster, AWorkerWaitsUntilTheChiefLetsItTrainAndFindsItsValues) {
  auto other = std::async(std::launch::async, [&] {
    const auto strategy = worker();
    return strategy->variable("w", floats({0, 0})).read();
  });
  const auto strategy = chief();
  const Variable w = strategy->variable("w", floats({1, 2}));
  w.assign(floats({3, 4}));
  strategy->let_others_train();
  EXPECT_TRUE(other.get().equal(floats({3, 4})));
}

TEST_F(V1Cluster, AWorkerWithoutAChiefSaysForWhomItHasWaited) {
  const auto strategy = worker({.cluster = {.timeout = std::chrono::milliseconds(300)}});
  EXPECT_THAT([&] { strategy->variable("w", floats({1})); },
              throws_error(ErrorCode::unavailable, "expected chief:0 to have made its variables"));
}

TEST_F(V1Cluster, AServerThatIsMissingIsNamed) {
  end(1);
  const auto strategy = chief({.cluster = {.timeout = std::chrono::seconds(1)}});
  EXPECT_THAT([&] { strategy->variable("w", floats({1})); },
              throws_error(ErrorCode::unavailable, "ps:1"));
}

TEST_F(V1Cluster, AnotherShapeUnderTheSameNameIsNamed) {
  const auto strategy = chief();
  const Variable w = strategy->variable("w", floats({1, 2}));
  strategy->let_others_train();
  const auto other = worker({.cluster = {.timeout = std::chrono::milliseconds(500)}});
  EXPECT_THAT([&] { other->variable("w", floats({1})); },
              throws_error(ErrorCode::invalid_argument,
                           "variable 'w' as chief:0 has made it, float32[2], trainable, got "
                           "float32[1], trainable in worker:0"));
  EXPECT_THAT(
      [&] {
        other->variable("w", floats({1, 2}), {.is_trainable = false});
      },
      throws_error(ErrorCode::invalid_argument, "not trainable in worker:0"));
  EXPECT_THAT(
      [&] { other->variable("v", floats({1})); },
      throws_error(ErrorCode::failed_precondition, "expected chief:0 to make variable 'v'"));
}

TEST_F(V1Cluster, AChiefOfAnotherProgramDoesNotGoOnWithItsVariables) {
  {
    const auto strategy = chief();
    strategy->variable("w", floats({1, 2}));
    strategy->let_others_train();
  }
  const auto strategy = chief();
  EXPECT_THAT([&] { strategy->variable("w", floats({1})); },
              throws_error(ErrorCode::invalid_argument, "StrategyOptions::begins_new_job"));
}

// A job that another version of the chief's program has begun, while this worker trained.
TEST_F(V1Cluster, AWorkerOfAnotherProgramThanTheNextChiefIsNamed) {
  const auto use_next_job = [&](const std::function<void(V1&)>& make_others) {
    auto before = chief();
    const Variable a = before->variable("a", floats({1}));
    const Variable b = before->variable("b", floats({2}));
    before->let_others_train();
    const auto other = worker();
    const Variable here = other->variable("a", floats({1}));
    const Variable there = other->variable("b", floats({2}));
    before.reset();
    const auto next = chief({.begins_new_job = true});
    next->variable("a", floats({1}));
    make_others(*next);
    next->let_others_train();
    here.read();
  };
  EXPECT_THAT([&] { use_next_job([](V1&) {}); },
              throws_error(ErrorCode::failed_precondition,
                           "expected the 2 variables of worker:0 in the job of chief:0, got 1"));
  EXPECT_THAT([&] { use_next_job([](V1& next) {
                      next.variable("b", floats({1, 2}));
                    }); },
              throws_error(ErrorCode::invalid_argument, "run the same program in every task"));
}

TEST(V1Configuration, AMissingClusterIsNamed) {
  const testing::LauncherEnvironment none;
  EXPECT_THAT([] { V1{}; }, throws_error(ErrorCode::invalid_argument,
                                         "expected a cluster in TF_CONFIG, got none; set"));
}

TEST_F(V1Cluster, AChiefThatStartsAgainGoesOnUnlessItBeginsANewJob) {
  {
    const auto strategy = chief();
    const Variable w = strategy->variable("w", floats({1}));
    w.assign(floats({5}));
    strategy->let_others_train();
  }
  {
    const auto strategy = chief();
    EXPECT_EQ(number(strategy->variable("w", floats({1}))), 5);
    EXPECT_EQ(number(strategy->variable("later", floats({2}))), 2);
  }
  const auto strategy = chief({.begins_new_job = true});
  EXPECT_EQ(number(strategy->variable("w", floats({1}))), 1);
}

// It may not have restored yet what it wanted to.
TEST_F(V1Cluster, AChiefThatStartsAgainBeforeItLetOthersTrainBeginsAgain) {
  {
    const auto strategy = chief();
    strategy->variable("w", floats({1})).assign(floats({5}));
  }
  const auto strategy = chief();
  const Variable w = strategy->variable("w", floats({1}));
  EXPECT_EQ(number(w), 1);
  EXPECT_FALSE(w.impl()->home()->keeps_newer_values());
}

TEST_F(V1Cluster, VariablesAreRoundRobinOverTheServers) {
  const auto strategy = chief({.partitioner = [](const TensorSpec& spec) {
    const bool is_table = spec.sizes->size() == 2;
    return is_table ? std::vector<std::int64_t>{3, 1} : std::vector<std::int64_t>{1};
  }});
  const Variable a = strategy->variable("a", floats({1}));
  const Variable table = strategy->variable("table", torch::arange(10.0).view({5, 2}));
  const Variable beside = strategy->variable("beside", floats({1}), {.colocate_with = a});
  const Variable b = strategy->variable("b", floats({1}));
  const auto devices = [&](const Variable& variable) {
    return strategy->extended().devices(variable);
  };
  EXPECT_THAT(devices(a), ElementsAre("/job:ps/task:0/CPU:0"));
  EXPECT_THAT(devices(table),
              ElementsAre("/job:ps/task:1/CPU:0", "/job:ps/task:0/CPU:0", "/job:ps/task:1/CPU:0"));
  EXPECT_THAT(devices(beside), ElementsAre("/job:ps/task:0/CPU:0"));
  EXPECT_THAT(devices(b), ElementsAre("/job:ps/task:0/CPU:0"));
  table.assign_add(torch::ones({5, 2}));
  EXPECT_TRUE(table.read().equal(torch::arange(10.0).view({5, 2}) + 1));
}

// --- training ------------------------------------------------------------------------------------

// One step of w := w - 0.1 * gradient, where each replica has the gradient x.
template <class Optimizer>
void train(V1& strategy, const Optimizer& optimizer, const Variable& w, float x) {
  strategy.run([&] { optimizer.minimize((w.tensor() * x).sum()); });
}

TEST_F(V1Cluster, WorkersUpdateOneValueWithTheSumOfTheirReplicas) {
  const auto first = chief(two_replicas());
  EXPECT_EQ(first->num_replicas_in_sync(), 2);
  const Variable w = first->variable("w", floats({10}));
  const SGD sgd({w}, {.learning_rate = 0.5});
  train(*first, sgd, w, 1);  // lets others train
  EXPECT_EQ(number(w), 9);
  const auto second = worker();
  const Variable same = second->variable("w", floats({0}));
  train(*second, SGD({same}, {.learning_rate = 0.5}), same, 2);
  EXPECT_EQ(number(same), 8);
  EXPECT_EQ(number(w), 8);
}

TEST_F(V1Cluster, SlotsAreOnTheServersSoTwoWorkersStepAsOne) {
  const Variable alone = local_variable("w", floats({1, 2}));
  const Adam reference({alone}, {.learning_rate = 0.1, .name = "adam"});
  const auto first = chief();
  const Variable w = first->variable("w", floats({1, 2}));
  const Adam adam({w}, {.learning_rate = 0.1, .name = "adam"});
  first->let_others_train();
  const auto second = worker();
  const Variable same = second->variable("w", floats({0, 0}));
  const Adam adam_there({same}, {.learning_rate = 0.1, .name = "adam"});
  for (int step = 0; step < 4; ++step) {
    const auto x = static_cast<float>(step + 1);
    step % 2 == 0 ? train(*first, adam, w, x) : train(*second, adam_there, same, x);
    reference.minimize((alone.tensor() * x).sum());
  }
  EXPECT_TRUE(w.read().equal(alone.read()));
}

TEST_F(V1Cluster, EachWorkerCountsAStepOnceAndEachReplicaItsSum) {
  const auto first = chief(two_replicas());
  const auto make_sum = [](V1& strategy) {
    return strategy.variable("sum", at::zeros({}, at::kLong),
                             {.is_trainable = false, .aggregation = VariableAggregation::sum});
  };
  const auto step_of = [&](V1& strategy) {
    const Variable step = strategy.global_step();
    const Variable sum = make_sum(strategy);
    strategy.run([&] {
      step.assign_add(1);
      sum.assign_add(at::ones({}, at::kLong));
    });
  };
  step_of(*first);
  const auto second = worker(two_replicas());
  step_of(*second);
  EXPECT_EQ(count(first->global_step()), 2);
  EXPECT_EQ(count(make_sum(*second)), 4);
}

TEST_F(V1Cluster, ARunUsesTheValuesOfItsBeginningAndThoseAfterItsUpdates) {
  const auto first = chief();
  const Variable w = first->variable("w", floats({1}));
  first->let_others_train();
  const auto second = worker();
  const Variable same = second->variable("w", floats({0}));
  const auto seen = second->run([&] {
    const at::Tensor before = same.tensor().detach().clone();
    w.assign(floats({7}));  // of the other task
    const at::Tensor during = same.tensor().detach().clone();
    same.assign_add(floats({1}));
    return at::cat({before, during, same.tensor().detach()});
  });
  EXPECT_TRUE(seen.value().equal(floats({1, 1, 8})));
}

TEST_F(V1Cluster, ARunReadsOnlyWhatOthersHaveChanged) {
  const auto first = chief();
  const Variable w = first->variable("w", torch::zeros({1000}));
  const Variable b = first->variable("b", floats({1}));
  const SGD sgd({w}, {.learning_rate = 0.5});
  train(*first, sgd, w, 1);
  const std::uint64_t before = bytes_read();
  EXPECT_EQ(seen_in_run(*first, b), 1);
  EXPECT_EQ(bytes_read(), before);
  const auto second = worker();
  second->variable("b", floats({0})).assign(floats({7}));
  const std::uint64_t after_assignment = bytes_read();
  EXPECT_EQ(seen_in_run(*first, b), 7);
  EXPECT_EQ(bytes_read() - after_assignment, sizeof(float));
}

TEST_F(V1Cluster, UpdatesOutsideOfRunsAreMadeOnTheServersAndResultsStayHere) {
  const auto strategy = chief(two_replicas());
  const Variable w = strategy->variable("w", floats({1}));
  strategy->extended().update(w, [](const Variable& there) { there.assign_add(floats({2})); });
  EXPECT_EQ(number(w), 3);
  const auto values = strategy->run([] {
    return floats({static_cast<float>(get_replica_context()->replica_id_in_sync_group() + 1)});
  });
  const std::string own = "/job:chief/task:0/CPU:0";
  EXPECT_EQ(strategy->extended().reduce_to("sum", values, own)[0].item<float>(), 3);
  EXPECT_EQ(strategy->extended().batch_reduce_to("mean", {{values, own}})[0][0].item<float>(), 1.5);
  EXPECT_THAT([&] { strategy->extended().reduce_to("sum", values, "/job:worker/task:0"); },
              throws_error(ErrorCode::invalid_argument, "/job:worker/task:0"));
}

TEST_F(V1Cluster, AReplicaNeedsAnAggregationToAssign) {
  const auto strategy = chief(two_replicas());
  const Variable w = strategy->variable("w", floats({1}));
  EXPECT_THAT([&] { strategy->run([&] { w.assign(floats({2})); }); },
              throws_error(ErrorCode::invalid_argument, "expected an aggregation"));
}

TEST_F(V1Cluster, StepsOfFunctionsUpdateTheServers) {
  const auto strategy = chief(two_replicas());
  const Variable w = strategy->variable("w", floats({4}));
  const SGD sgd({w}, {.learning_rate = 0.5});
  auto step = strategy->function([&](at::Tensor x) {
    const at::Tensor loss = (w.tensor() * x).sum();
    sgd.minimize(loss);
    return loss;
  });
  step(floats({1}));
  const auto losses = step(floats({1}));
  EXPECT_EQ(number(w), 2);
  EXPECT_EQ(losses[0].item<float>(), 3) << "the value of the step before";
}

TEST_F(V1Cluster, BuffersThatAStepWritesAreAssigned) {
  const auto first = chief();
  auto model = first->replicate([] { return torch::nn::BatchNorm1d(2); });
  first->run([&] { model->forward(torch::tensor({{0.0, 2.0}, {0.0, 6.0}})); });
  const auto second = worker();
  auto same = second->replicate([] { return torch::nn::BatchNorm1d(2); });
  const auto seen = same.snapshot();
  EXPECT_NEAR(seen->running_mean[1].item<float>(), 0.4, 1e-6);
  second->run([&] { same->forward(torch::tensor({{0.0, 2.0}, {0.0, 6.0}})); });
  EXPECT_EQ(model.snapshot()->num_batches_tracked.item<std::int64_t>(), 2);
}

// Regression: the read after an update brought the value without what was written before.
TEST_F(V1Cluster, AnUpdateKeepsWhatTheStepHasWrittenInPlaceBefore) {
  const auto strategy = chief();
  const Variable mean = strategy->variable("mean", floats({1, 2}), {.is_trainable = false});
  const Variable count_of = strategy->variable("count", torch::tensor(3), {.is_trainable = false});
  strategy->run([&] {
    mean.tensor().mul_(10);
    mean.assign_add(floats({1, 1}));
    count_of.tensor().add_(2);
    count_of.assign_add(torch::tensor(4));
    EXPECT_EQ(count(count_of), 9);
  });
  EXPECT_TRUE(torch::equal(mean.read(), floats({11, 21})));
  EXPECT_EQ(count(count_of), 9);
}

// Regression: the next update hid what had been written.
TEST_F(V1Cluster, ATrainableVariableThatIsWrittenAndThenUpdatedIsRefused) {
  const auto strategy = chief();
  const Variable weight = strategy->variable("weight", floats({1}));
  EXPECT_THAT(
      [&] {
        strategy->run([&] {
          const torch::NoGradGuard no_grad;
          weight.tensor().mul_(2);
          weight.assign_add(floats({1}));
        });
      },
      throws_error(ErrorCode::invalid_argument, "writes in place"));
}

// Regression: the copy kept a value that LibTorch had not counted as written.
TEST_F(V1Cluster, AWriteThatLibTorchDoesNotCountIsRefusedInTheFirstRun) {
  const auto strategy = chief();
  const Variable weight = strategy->variable("weight", floats({1}));
  EXPECT_THAT([&] { strategy->run([&] { weight.tensor().data().mul_(2); }); },
              throws_error(ErrorCode::invalid_argument, "writes in place"));
  EXPECT_EQ(seen_in_run(*strategy, weight), 1);
}

// Regression: each replica's assignment replaced the values of all.
TEST_F(V1Cluster, ReplicasAssignBuffersOfTheirOwn) {
  const auto strategy = chief(two_replicas());
  const auto norm = strategy->replicate([] { return torch::nn::BatchNorm1d(1); });
  const auto is_mean = [](const Variable& each) { return each.name().ends_with("running_mean"); };
  const Variable mean = *std::ranges::find_if(norm.variables(), is_mean);
  strategy->run([&] {
    const auto replica = get_replica_context()->local_replica_id();
    mean.assign(floats({replica == 0 ? 2.0F : 4.0F}));
    EXPECT_EQ(number(mean), replica == 0 ? 2 : 4);
  });
  EXPECT_EQ(number(mean), 3);
}

TEST_F(V1Cluster, OptimizersOfLibTorchAreRefused) {
  const auto strategy = chief();
  auto model = strategy->replicate([] { return torch::nn::Linear(1, 1); });
  EXPECT_THAT(
      [&] {
        strategy->run([&] {
          const torch::NoGradGuard no_grad;
          model->weight.add_(1);
        });
      },
      throws_error(ErrorCode::invalid_argument, "use an optimizer of Cohort"));
  const at::Tensor there = model.variables()[0].read();
  const auto seen = strategy->run([&] { return model->weight.detach().clone(); });
  EXPECT_TRUE(seen.value().equal(there)) << "the write has changed nothing";
}

TEST_F(V1Cluster, LossesAreComputedInRuns) {
  const auto strategy = chief();
  const Variable w = strategy->variable("w", floats({1}));
  const SGD sgd({w}, {.learning_rate = 0.5});
  EXPECT_THAT([&] { sgd.minimize(w.tensor().sum()); },
              throws_error(ErrorCode::failed_precondition, "compute it in run()"));
}

TEST_F(V1Cluster, WorkersDivideTheData) {
  const auto elements = [](V1& strategy) {
    std::vector<std::int64_t> seen;
    for (const DistributedElement& each : strategy.distribute_dataset(Dataset::range(4)))
      seen.push_back(each[0].tensor().item<std::int64_t>());
    return seen;
  };
  const auto first = chief();
  const auto second = worker();
  EXPECT_THAT(elements(*first), ElementsAre(0, 2));
  EXPECT_THAT(elements(*second), ElementsAre(1, 3));
}

TEST_F(V1Cluster, WorkersDoNotMeet) {
  const auto strategy = chief();
  EXPECT_THAT([&] { strategy->barrier("end"); }, throws_error(ErrorCode::unimplemented, "barrier"));
}

TEST_F(V1Cluster, OthersDoNotRestore) {
  const auto first = chief();
  const Variable w = first->variable("w", floats({1}));
  first->let_others_train();
  const auto second = worker();
  const Variable same = second->variable("w", floats({1}));
  EXPECT_TRUE(same.impl()->home()->keeps_newer_values());
  EXPECT_FALSE(w.impl()->home()->keeps_newer_values());
}

// --- losses --------------------------------------------------------------------------------------

TEST_F(V1Cluster, TheLossOfAServerTakesAllBackToTheirInitialValues) {
  const auto first = chief();
  const Variable a = first->variable("a", floats({1}));
  const Variable b = first->variable("b", floats({2}));
  first->let_others_train();
  const auto second = worker();
  const Variable there = second->variable("b", floats({0}));
  a.assign_add(floats({5}));
  there.assign_add(floats({5}));
  end(1);
  start(1);
  there.assign_add(floats({10}));  // waits for the chief, whose thread finds the loss
  EXPECT_EQ(number(there), 12);
  EXPECT_EQ(number(b), 12);
  EXPECT_EQ(number(a), 1) << "on the server that was not lost";
}

// Values from before a loss had the same version as others after it.
TEST_F(V1Cluster, ARunAfterTheLossOfAServerTakesNoOldValueForANewOne) {
  const auto first = chief();
  first->variable("a", floats({1}));
  const Variable b = first->variable("b", floats({2}));
  first->let_others_train();
  const auto second = worker();
  const Variable there = second->variable("b", floats({0}));
  there.assign_add(floats({5}));
  EXPECT_EQ(seen_in_run(*first, b), 7);
  end(1);
  start(1);
  there.assign_add(floats({10}));
  EXPECT_EQ(seen_in_run(*first, b), 12);
}

TEST_F(V1Cluster, TheLossOfAServerTakesAllBackToWhatWasSaved) {
  const auto first = chief();
  const Variable a = first->variable("a", floats({1}));
  const Variable b = first->variable("b", floats({2}));
  int restores = 0;
  first->restore_after_loss([&]() -> std::optional<std::int64_t> {
    a.assign(floats({100}));
    b.assign(floats({200}));
    ++restores;
    return 7;
  });
  first->let_others_train();
  end(0);
  start(0);
  EXPECT_EQ(number(a), 100);
  EXPECT_EQ(number(b), 200);
  EXPECT_EQ(restores, 1);
}

// A chief that had joined the job kept the initial values of after the loss, since those of before
// had been newer than its checkpoint, and let others train with them.
TEST_F(V1Cluster, AChiefThatHasJoinedRestoresAfterALossBeforeItTrains) {
  {
    const auto strategy = chief();
    strategy->variable("w", floats({1})).assign(floats({5}));
    strategy->let_others_train();
  }
  testing::Warnings warnings;
  const auto strategy = chief();
  const Variable w = strategy->variable("w", floats({1}));
  const Variable step = strategy->global_step();
  EXPECT_TRUE(w.impl()->home()->keeps_newer_values());
  end(0);
  start(0);
  EXPECT_EQ(number(w), 1);
  EXPECT_FALSE(w.impl()->home()->keeps_newer_values());
  const auto other = worker({.cluster = {.timeout = std::chrono::milliseconds(300)}});
  EXPECT_THAT([&] { other->variable("w", floats({1})); },
              throws_error(ErrorCode::unavailable, "expected chief:0 to have made its variables"));
  strategy->restore_after_loss([&]() -> std::optional<std::int64_t> {
    w.assign(floats({7}));
    step.assign(at::full({}, 3, at::kLong));
    return 3;
  });
  strategy->let_others_train();
  EXPECT_EQ(number(worker()->variable("w", floats({1}))), 7);
  EXPECT_EQ(warnings.count("falls back from an unknown step to step 3"), 1) << warnings.text();
}

TEST_F(V1Cluster, AChiefThatBeginsAgainAfterALossSaysToWhichStep) {
  {
    const auto strategy = chief();
    strategy->global_step().assign(at::full({}, 50, at::kLong));
    strategy->let_others_train();
  }
  end(1);
  start(1);
  testing::Warnings warnings;
  const auto strategy = chief();
  strategy->global_step().assign(at::full({}, 20, at::kLong));  // what it has restored
  strategy->let_others_train();
  EXPECT_EQ(warnings.count("has lost the variables of the job"), 1) << warnings.text();
  EXPECT_EQ(warnings.count("falls back from an unknown step to step 20"), 1) << warnings.text();
}

// A save that a loss had interrupted took the restored values for those of its step.
TEST_F(V1Cluster, ASaveAfterALossIsOfAStepAfterIt) {
  const testing::TemporaryFolder folder;
  const auto strategy = chief();
  const Variable a = strategy->variable("a", floats({1}));
  const Variable b = strategy->variable("b", floats({2}));
  strategy->let_others_train();
  b.assign_add(floats({10}));
  const Checkpoint checkpoint(*strategy);
  checkpoint.write(folder.file("before"), 10);
  end(1);
  start(1);
  EXPECT_THAT([&] { checkpoint.write(folder.file("during"), 11); },
              throws_error(ErrorCode::aborted, "save again after the next step"));
  EXPECT_EQ(number(b), 2);
  checkpoint.write(folder.file("after"), 0);
  b.assign(floats({3}));
  EXPECT_EQ(checkpoint.read(folder.file("after")).step, 0);
  EXPECT_EQ(number(b), 2);
}

// Another thread of a worker used the next job while its chief still restored.
TEST_F(V1Cluster, AllThreadsOfAWorkerWaitUntilTheVariablesAreRestored) {
  const auto first = chief();
  const Variable a = first->variable("a", floats({1}));
  const Variable b = first->variable("b", floats({2}));
  std::promise<void> restores, may_restore;
  first->restore_after_loss([&]() -> std::optional<std::int64_t> {
    restores.set_value();
    may_restore.get_future().wait();
    a.assign(floats({100}));
    b.assign(floats({200}));
    return 7;
  });
  first->let_others_train();
  const auto second = worker();
  const Variable here = second->variable("a", floats({0}));
  const Variable there = second->variable("b", floats({0}));
  testing::Warnings warnings;
  end(1);
  start(1);
  restores.get_future().wait();
  const auto read = [](const Variable& variable) {
    return std::async(std::launch::async, [variable] { return number(variable); });
  };
  auto of_lost = read(there);
  const Deadline deadline = Deadline::after(std::chrono::seconds(60));
  while (warnings.count("worker:0 waits for chief:0") == 0 && !deadline.has_expired())
    std::this_thread::yield();
  auto of_other = read(here);
  EXPECT_EQ(of_other.wait_for(std::chrono::milliseconds(300)), std::future_status::timeout);
  may_restore.set_value();
  EXPECT_EQ(of_lost.get(), 200);
  EXPECT_EQ(of_other.get(), 100);
}

TEST_F(V1Cluster, WhatRestoringThrowsLaterCallsThrow) {
  const auto first = chief();
  const Variable a = first->variable("a", floats({1}));
  first->restore_after_loss([]() -> std::optional<std::int64_t> {
    throw Error(ErrorCode::data_loss, "the checkpoint is damaged");
  });
  end(0);
  start(0);
  EXPECT_THAT([&] { a.read(); }, throws_error(ErrorCode::data_loss, "is damaged"));
}

TEST_F(V1Cluster, AServerThatStaysAwayIsNamed) {
  const auto first = chief({.cluster = {.data_timeout = std::chrono::seconds(2)}});
  const Variable a = first->variable("a", floats({1}));
  end(0);
  EXPECT_THAT([&] { a.read(); }, throws_error(ErrorCode::unavailable, "ps:0"));
}

// The connection breaks after the server has made the update and before its answer comes.
TEST_F(V1Cluster, AnUpdateWhoseAnswerIsLostIsMadeOnce) {
  testing::FaultyProxy proxy;
  proxy.set_target(jobs_["ps"][0]);
  const std::string job_id = "v1_strategy_test";
  for (std::size_t i = 0; i < 2; ++i) {
    end(i);
    servers_[i] =
        std::make_unique<Server>(resolver("ps", static_cast<std::int64_t>(i)),
                                 ServerOptions{.job_id = job_id, .handle_signals = false});
  }
  jobs_["ps"][0] = proxy.address();
  const auto strategy = chief({.cluster = {.job_id = job_id}});
  const Variable a = strategy->variable("a", floats({1}));
  for (int i = 0; i < 3; ++i) {
    proxy.arm({.kind = testing::Fault::Kind::cut,
               .direction = testing::Fault::Direction::to_client,
               .part = testing::Fault::Part::header});
    a.assign_add(floats({1}));
    EXPECT_TRUE(proxy.has_happened());
  }
  EXPECT_EQ(number(a), 4);
}

}  // namespace
}  // namespace cohort
