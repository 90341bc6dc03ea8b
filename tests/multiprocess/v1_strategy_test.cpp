// SPDX-License-Identifier: Apache-2.0
// Tasks of a cluster of version 1, each of which runs its program by itself.
#include <gmock/gmock.h>
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <future>
#include <string>
#include <vector>

#include "cohort/checkpoint_files/inspection.h"
#include "cohort/data/dataset.h"
#include "cohort/estimator/train_and_evaluate.h"
#include "cohort/optimizer/optimizers.h"
#include "cohort/strategy/strategy_extended.h"
#include "cohort/strategy/strategy_function.h"
#include "cohort/testing/launcher_environment.h"
#include "cohort/testing/temporary_folder.h"
#include "cohort/testing/throws_error.h"
#include "cohort/variable/variable_home.h"
#include "tests/multiprocess/v1_cluster.h"

namespace cohort {
namespace {

using estimator::Estimator;
using estimator::EstimatorSpec;
using estimator::ModelContext;
using estimator::RunConfig;
using ::testing::ElementsAre;
using testing::floats;
using ::testing::HasSubstr;
using testing::number;
using testing::seen_in_run;
using testing::throws_error;
using testing::V1;
using v1::StrategyOptions;
using V1Cluster = testing::V1Cluster;

std::int64_t count(const Variable& variable) { return variable.read().item<std::int64_t>(); }

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

// Regression: the evaluator waited for a checkpoint of the last step, which no task would save, if
// the chief was killed between this step and its save.
TEST_F(V1Cluster, AChiefThatStartsAgainSavesTheLastStepOfItsTraining) {
  const testing::TemporaryFolder folder;
  const auto train = [&](std::int64_t save_checkpoints_steps) {
    const auto strategy = chief();
    Estimator estimator(
        [](const ModelContext& context) {
          const Variable count = context.strategy.variable(
              "count", floats({0}), {.aggregation = VariableAggregation::sum});
          return EstimatorSpec{.train_step = [count](const Nest& /*element*/) {
            count.assign_add(floats({1}));
            return at::ones({});
          }};
        },
        RunConfig({.model_dir = folder.file("model"),
                   .save_checkpoints_steps = save_checkpoints_steps,
                   .train_distribute = strategy.get()}));
    const auto data = [](const InputContext&) { return Dataset::range(100); };
    EXPECT_EQ(train_and_evaluate(estimator, {.input_fn = data, .max_steps = 5}, {.input_fn = data})
                  .global_step,
              5);
  };
  train(0);
  EXPECT_TRUE(checkpoint::checkpoints_in(folder.file("model")).empty());
  for (int chiefs = 0; chiefs < 2; ++chiefs) {
    train(1000);
    const std::vector<std::string> saved = checkpoint::checkpoints_in(folder.file("model"));
    ASSERT_EQ(saved.size(), 1U);
    EXPECT_EQ(checkpoint::summary_of(saved[0]).step, 5);
  }
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
  for (int i = 0; i < 4; ++i) train(*first, sgd, w, 1);  // the first, second and fourth read all
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

// Changes that a step does not read any more are sent once, at its end.
TEST_F(V1Cluster, AStepOfAFunctionSendsItsUpdatesTogether) {
  const auto strategy = chief();
  const Variable w = strategy->variable("w", floats({4}));
  const Variable steps = strategy->global_step();
  const Variable sum = strategy->variable("sum", floats({0}), {.is_trainable = false});
  const SGD sgd({w}, {.learning_rate = 0.5});
  const auto body = [&](at::Tensor x) {
    sgd.minimize((w.tensor() * x).sum());
    steps.assign_add(1);
    sum.assign_add(x);
    sum.assign_add(x);
  };
  auto step = strategy->function(body);
  step(floats({1}));
  const std::uint64_t traced_before = pushes();
  step(floats({1}));
  const std::uint64_t of_function = pushes() - traced_before;
  strategy->run(body, floats({1}));
  EXPECT_EQ(of_function, 2) << "one for each server";
  EXPECT_EQ(pushes() - traced_before - of_function, 4) << "one for each update in run()";
  EXPECT_EQ(number(w), 2.5);
  EXPECT_EQ(count(steps), 3);
  EXPECT_EQ(number(sum), 6);
}

TEST_F(V1Cluster, AStepOfAFunctionSeesItsUpdates) {
  const auto strategy = chief();
  const Variable w = strategy->variable("w", floats({4}));
  const Variable other = strategy->variable("other", floats({0}));
  const Variable steps = strategy->global_step();
  const SGD sgd({w}, {.learning_rate = 0.5});
  auto step = strategy->function([&](at::Tensor x) {
    sgd.minimize((w.tensor() * x).sum());
    steps.assign_add(1);
    other.assign(w.tensor().detach() * 10);
    w.assign_add(floats({1}));
    return steps.read();
  });
  EXPECT_EQ(step(floats({2}))[0].item<std::int64_t>(), 1);
  EXPECT_EQ(step(floats({2}))[0].item<std::int64_t>(), 2);
  EXPECT_EQ(number(other), 30);
  EXPECT_EQ(number(w), 4);
}

TEST_F(V1Cluster, AStepOfAFunctionInARunChangesWhatTheRunReads) {
  const auto strategy = chief();
  const Variable w = strategy->variable("w", floats({4}));
  const SGD sgd({w}, {.learning_rate = 0.5});
  auto step = strategy->function([&](at::Tensor x) { sgd.minimize((w.tensor() * x).sum()); });
  step(floats({2}));
  const auto seen = strategy->run([&] {
    get_replica_context()->merge_call([&](Strategy&) { step(floats({2})); });
    return w.tensor().detach().clone();
  });
  EXPECT_EQ(seen.value().item<float>(), 2);
}

// As in run().
TEST_F(V1Cluster, AStepThatFailsAfterAnUpdateHasMadeIt) {
  const auto strategy = chief();
  const Variable w = strategy->variable("w", floats({4}));
  const SGD sgd({w}, {.learning_rate = 0.5});
  const auto body = [&](const at::Tensor& x, const at::Tensor& index) {
    sgd.minimize((w.tensor() * x).sum());
    return torch::zeros({2}).index_select(0, index);
  };
  auto step = strategy->function(body);
  step(floats({1}), torch::tensor({1}));
  const auto fails = [](const auto& call) { EXPECT_ANY_THROW(call()); };
  fails([&] { step(floats({1}), torch::tensor({2})); });
  EXPECT_EQ(number(w), 3);
  fails([&] { strategy->run(body, floats({1}), torch::tensor({2})); });
  EXPECT_EQ(number(w), 2.5);
  EXPECT_EQ(seen_in_run(*strategy, w), 2.5);
}

// A later assignment must not bring back what was written in place before an earlier one.
TEST_F(V1Cluster, AStepOfAFunctionThatWritesInPlaceAndAssignsTwice) {
  const auto strategy = chief();
  const Variable mean = strategy->variable("mean", floats({1, 2}), {.is_trainable = false});
  auto step = strategy->function([&](const at::Tensor& x) {
    mean.tensor().mul_(x);
    mean.assign_add(floats({1, 1}));
    mean.assign_add(floats({2, 2}));
  });
  for (int i = 0; i < 3; ++i) step(floats({10}));
  EXPECT_TRUE(torch::equal(mean.read(), floats({1333, 2333})));
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

}  // namespace
}  // namespace cohort
