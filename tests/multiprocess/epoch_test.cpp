// SPDX-License-Identifier: Apache-2.0
// Epochs over standard servers in other processes: every element exactly once.
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <numeric>

#include "cohort/coordinator/cluster_coordinator.h"
#include "cohort/optimizer/optimizers.h"
#include "cohort/testing/cluster/test_cluster.h"
#include "cohort/testing/throws_error.h"

namespace cohort {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::TestCluster;
using testing::throws_error;

class EpochTest : public ::testing::Test {
 protected:
  explicit EpochTest(CoordinatorOptions options = {})
      : cluster({.workers = 3, .ps = 2, .command = {COHORT_COMMAND, "server"}}),
        strategy(cluster.resolver()),
        coordinator(strategy, options),
        steps(strategy.variable("steps", at::zeros({}, at::kLong), {.is_trainable = false})),
        sum(strategy.variable("sum", at::zeros({}, at::kLong), {.is_trainable = false})),
        count([this](Iterator& it) {
          const at::Tensor x = it.next<at::Tensor>();
          steps.assign_add(at::ones({}, at::kLong));
          sum.assign_add(x.sum());
          return x.sum();
        }) {}

  // Gives worker i the numbers from bounds[i] up to, but not including, bounds[i + 1].
  PerWorkerDataset parts(std::vector<std::int64_t> bounds, std::int64_t batch = 1) {
    return coordinator.create_per_worker_dataset([=](const InputContext& input) {
      const auto i = static_cast<std::size_t>(input.input_pipeline_id);
      return Dataset::range(bounds.at(i + 1), {.start = bounds.at(i)}).batch(batch);
    });
  }
  // Returns the sum of the numbers below n.
  static std::int64_t sum_below(std::int64_t n) { return n * (n - 1) / 2; }
  std::int64_t total() { return sum.read().item<std::int64_t>(); }
  std::int64_t count_of_steps() { return steps.read().item<std::int64_t>(); }

  TestCluster cluster;
  ParameterServerStrategy strategy;
  ClusterCoordinator coordinator;
  Variable steps, sum;
  Function count;
};

// Only 121 to 125 of an epoch's 125 batches arrived, and 3 to 7 results were errors.
TEST_F(EpochTest, EveryElementOfUnevenPartsComesOnce) {
  const EpochResult result = coordinator.run_epoch(count, parts({0, 5, 5, 22}));
  EXPECT_EQ(result.steps, 22U);
  EXPECT_THAT(result.steps_per_worker, ElementsAre(5, 0, 17));
  EXPECT_EQ(count_of_steps(), 22);
  EXPECT_EQ(total(), sum_below(22));
  EXPECT_EQ(result.sum.tensor().item<std::int64_t>(), sum_below(22));
  EXPECT_EQ(result.mean.tensor().item<double>(), 10.5);
  EXPECT_TRUE(coordinator.done());
}

TEST_F(EpochTest, AShortLastBatchIsTracedAndWeighsItsRows) {
  const Function mean([](Iterator& it) {
    const at::Tensor x = it.next<at::Tensor>();
    return Nest::map({{"mean", x.to(at::kDouble).mean()}, {"rows", x.new_full({}, x.size(0))}});
  });
  const EpochResult result = coordinator.run_epoch(mean, parts({0, 7, 8, 19}, 4));
  EXPECT_THAT(result.steps_per_worker, ElementsAre(2, 1, 3));
  EXPECT_EQ(result.examples, 19U);
  EXPECT_EQ(result.mean.entries().at("mean").tensor().item<double>(), 9.0);
  EXPECT_EQ(result.sum.entries().at("rows").tensor().item<std::int64_t>(), 19);
}

// The mean of no rows is NaN, and NaN times a weight of 0 is NaN.
TEST_F(EpochTest, AnEmptyBatchHasNoWeightInTheMean) {
  const Function mean([](Iterator& it) { return it.next<at::Tensor>().to(at::kDouble).mean(); });
  const PerWorkerDataset data = coordinator.create_per_worker_dataset(
      [](const InputContext&) { return Dataset::range(5).batch(5).rebatch_split(4); });
  const EpochResult result = coordinator.run_epoch(mean, data);
  EXPECT_EQ(result.steps, 12U);
  EXPECT_EQ(result.examples, 15U);
  EXPECT_EQ(result.mean.tensor().item<double>(), 2.0);
}

TEST_F(EpochTest, EpochsFollowEachOther) {
  const PerWorkerDataset data = parts({0, 40, 80, 100}, 3);
  for (int epoch = 1; epoch <= 5; ++epoch) {
    EXPECT_EQ(coordinator.run_epoch(count, data).steps, 14U + 14 + 7);
    EXPECT_EQ(total(), epoch * sum_below(100));
  }
}

TEST_F(EpochTest, ADatasetIsDealtOutToTheWorkers) {
  const Dataset data = Dataset::range(1000).shuffle(100).batch(7);
  for (int epoch = 1; epoch <= 3; ++epoch) {
    const EpochResult result = coordinator.run_epoch(count, data);
    EXPECT_EQ(result.steps, 143U);
    EXPECT_EQ(result.examples, 1000U);
    EXPECT_EQ(total(), epoch * sum_below(1000));
  }
}

// The order of a seeded shuffle was that of the first pass each time.
TEST_F(EpochTest, EachEpochShufflesAnew) {
  const PerWorkerDataset data =
      coordinator.create_per_worker_dataset([](const InputContext& input) {
        return Dataset::range(300).shard(input).shuffle(100, {.seed = 1});
      });
  const auto order_of = [&] {
    std::vector<std::vector<std::int64_t>> order(3);
    coordinator.run_epoch(count, data, {.on_step = [&](const EpochStep& step) {
                            std::vector<std::int64_t>& mine = order[step.worker];
                            mine.resize(std::max<std::size_t>(mine.size(), step.index + 1));
                            mine[step.index] = step.result.tensor().item<std::int64_t>();
                          }});
    return order;
  };
  EXPECT_NE(order_of(), order_of());
  EXPECT_EQ(total(), 2 * sum_below(300));
}

TEST_F(EpochTest, ArgumentsArePassedThrough) {
  const Function scaled([](Iterator& it, at::Tensor factor, std::int64_t offset) {
    return it.next<at::Tensor>().sum().mul(factor).add(offset);
  });
  at::Tensor factor = at::full({}, 3, at::kLong);
  const EpochResult result = coordinator.run_epoch(scaled, parts({0, 4, 8, 10}), factor, 1);
  EXPECT_EQ(result.sum.tensor().item<std::int64_t>(), 3 * sum_below(10) + 10);
  const EpochOptions options{.on_step = [&](const EpochStep&) { factor.zero_(); }};
  EXPECT_EQ(coordinator.run_epoch(scaled, parts({0, 4, 8, 10}), options, factor, 1)
                .sum.tensor()
                .item<std::int64_t>(),
            3 * sum_below(10) + 10)
      << "the values of the call";
}

TEST_F(EpochTest, StepsByHandEndWithoutAnError) {
  Epoch epoch = coordinator.begin_epoch(count, parts({0, 10, 20, 31}));
  std::int64_t seen = 0;
  while (const std::optional<EpochStep> step = epoch.try_next())
    seen += step->result.tensor().item<std::int64_t>();
  EXPECT_EQ(seen, sum_below(31));
  EXPECT_FALSE(epoch.try_next());
  EXPECT_EQ(epoch.result().steps, 31U);
  EXPECT_TRUE(coordinator.done());
}

class NarrowEpochTest : public EpochTest {
 protected:
  static constexpr std::size_t kInFlight = 2;
  static constexpr std::int64_t kAhead = 3 * 2 * kInFlight;  // steps of all workers
  NarrowEpochTest() : EpochTest({.in_flight_per_worker = kInFlight}) {}
};

// next() schedules ahead, and once more when a step has ended.
TEST_F(NarrowEpochTest, OneThatIsGivenUpLeavesTheCoordinatorUsable) {
  {
    Epoch epoch = coordinator.begin_epoch(count, parts({0, 1000, 2000, 3000}));
    epoch.try_next();
  }
  coordinator.join();
  EXPECT_LE(count_of_steps(), 2 * kAhead);
  const std::int64_t before = total();
  coordinator.run_epoch(count, parts({0, 10, 20, 31}));
  EXPECT_EQ(total() - before, sum_below(31));
}

TEST_F(EpochTest, AnErrorOfAStepIsThrownOnceAndTheCoordinatorGoesOn) {
  const Function picky([](Iterator& it) {
    const at::Tensor x = it.next<at::Tensor>();
    return at::zeros({12}).index_select(0, x);
  });
  EXPECT_THAT(
      [&] {
        coordinator.run_epoch(picky, parts({0, 5, 10, 15}));
      },
      throws_error(ErrorCode::invalid_argument, "index out of range"));
  coordinator.join();
  EXPECT_EQ(coordinator.run_epoch(count, parts({0, 10, 20, 31})).steps, 31U);
}

TEST_F(EpochTest, AnElementThatCannotBeReadIsAnError) {
  const Dataset bad = Dataset::range(9).map(
      [](at::Tensor x) { return at::zeros({5}, at::kLong).index_select(0, x.view({1})); });
  EXPECT_THAT([&] { coordinator.run_epoch(count, bad); },
              throws_error(ErrorCode::invalid_argument, "index out of range"));
  EXPECT_TRUE(coordinator.done());
}

TEST_F(EpochTest, AnEmptyDatasetIsAnErrorAlsoWhenTheStepIsKnown) {
  const auto run = [&] { coordinator.run_epoch(count, parts({0, 0, 0, 0})); };
  EXPECT_THAT(run, throws_error(ErrorCode::out_of_range, "empty on every worker"));
  coordinator.run_epoch(count, parts({0, 1, 2, 3}));
  EXPECT_THAT(run, throws_error(ErrorCode::out_of_range, "empty on every worker"));
}

// As by auto-sharding in TensorFlow; the remedy in the message is the second half.
TEST_F(EpochTest, FewerElementsThanWorkersAreTakenAsShardsAlone) {
  const Dataset two = Dataset::range(8).batch(4);
  EXPECT_THAT([&] { coordinator.run_epoch(count, two); },
              throws_error(ErrorCode::invalid_argument, "of Dataset::shard() may be empty"));
  const EpochResult result = coordinator.run_epoch(
      count, coordinator.create_per_worker_dataset(
                 [&](const InputContext& input) { return two.shard(input); }));
  EXPECT_THAT(result.steps_per_worker, ElementsAre(1, 1, 0));
  EXPECT_EQ(result.examples, 8U);
}

TEST_F(EpochTest, WhatWouldNeverEndIsRefused) {
  EXPECT_THAT([&] { coordinator.run_epoch(count, Dataset::range(9).batch(1).repeat()); },
              throws_error(ErrorCode::invalid_argument, "leave out repeat()"));
  const Function blind([](Iterator&) { return at::ones({}); });
  EXPECT_THAT(
      [&] {
        coordinator.run_epoch(blind, parts({0, 1, 2, 3}));
      },
      throws_error(ErrorCode::invalid_argument, "draws nothing"));
}

TEST_F(EpochTest, AStepMayDrawSeveralElementsWhereTheyComeOutEven) {
  const Function pairs([](Iterator& it) {
    const at::Tensor first = it.next<at::Tensor>();
    return first.sum().mul(100).add(it.next<at::Tensor>().sum());
  });
  const EpochResult result = coordinator.run_epoch(pairs, parts({0, 4, 6, 6}));
  EXPECT_EQ(result.sum.tensor().item<std::int64_t>(), (0 + 2 + 4) * 100 + 1 + 3 + 5);
  EXPECT_EQ(result.examples, 6U);
  const auto weighted = [](Iterator& it) {
    it.next<at::Tensor>();
    return it.next<at::Tensor>().to(at::kDouble).mean();
  };
  // Steps of 3 + 3 and 3 + 2 rows, whose second elements have the means 4 and 9.5.
  EXPECT_EQ(coordinator.run_epoch(Function(weighted), parts({0, 11, 11, 11}, 3))
                .mean.tensor()
                .item<double>(),
            (6 * 4 + 5 * 9.5) / 11);
  EXPECT_THAT(
      [&] {
        coordinator.run_epoch(pairs, parts({0, 4, 7, 7}));
      },
      throws_error(ErrorCode::out_of_range, "2 elements for each step"));
}

// The step that found the end took an element of the other iterator, or found its end.
TEST_F(EpochTest, AnotherIteratorLosesNothingAtTheEnd) {
  const PerWorkerIterator other = parts({0, 4, 8, 12}).iterator();
  const Function both([](Iterator& it, Iterator& beside) {
    const at::Tensor y = beside.next<at::Tensor>();
    return it.next<at::Tensor>().sum().mul(100).add(y.sum());
  });
  for (int epoch = 0; epoch < 2; ++epoch) {
    const EpochResult result = coordinator.run_epoch(both, parts({0, 2, 4, 6}), other);
    EXPECT_THAT(result.steps_per_worker, ElementsAre(2, 2, 2));
    EXPECT_EQ(result.sum.tensor().item<std::int64_t>(), 100 * sum_below(6) + 27 + 12 * epoch);
  }
}

// One worker has run 34 of the first 100 steps, and took others in turn with them.
TEST_F(NarrowEpochTest, OtherClosuresRunBesideOne) {
  Variable others = strategy.variable("others", at::zeros({}));
  const Function add([&] { others.assign_add(at::ones({})); });
  std::vector<RemoteValue> results;
  std::ptrdiff_t ended_beside = 0;
  const auto on_step = [&](const EpochStep&) {
    if (results.size() == 100)
      ended_beside = std::count_if(results.begin(), results.end(),
                                   [](const RemoteValue& result) { return result.is_ready(); });
    results.push_back(coordinator.schedule(add));
  };
  coordinator.run_epoch(count, parts({0, 50, 100, 150}), {.on_step = on_step});
  EXPECT_GT(ended_beside, 0);
  coordinator.join();
  EXPECT_EQ(others.read().item<float>(), 150);
  EXPECT_EQ(total(), sum_below(150));
}

TEST_F(EpochTest, TheEndOfDataUnderScheduleNamesTheRemedy) {
  auto iterator = parts({0, 2, 4, 6}).iterator();
  const auto run_past_the_end = [&] {
    for (int i = 0; i < 30; ++i) coordinator.schedule(count, iterator);
    coordinator.join();
  };
  EXPECT_THAT(run_past_the_end, throws_error(ErrorCode::out_of_range,
                                             "after 2 elements; ClusterCoordinator::run_epoch"));
}

class EagerEpochTest : public EpochTest {
 protected:
  EagerEpochTest() : EpochTest({.run_eagerly = true}) {}
};

TEST_F(EagerEpochTest, RunsTheElementsOfAllWorkersHere) {
  const EpochResult result = coordinator.run_epoch(count, parts({0, 5, 5, 22}, 2));
  EXPECT_THAT(result.steps_per_worker, ElementsAre(3, 0, 9));
  EXPECT_EQ(result.examples, 22U);
  EXPECT_EQ(total(), sum_below(22));
  const Function pairs(
      [](Iterator& it) { return it.next<at::Tensor>().sum().add(it.next<at::Tensor>().sum()); });
  EXPECT_EQ(coordinator.run_epoch(pairs, parts({0, 11, 11, 11}, 3)).examples, 11U);
}

// It got the same element for ever.
TEST_F(EagerEpochTest, AStepThatDrawsNothingIsRefused) {
  const Function blind([](Iterator&) { return at::ones({}); });
  EXPECT_THAT(
      [&] {
        coordinator.run_epoch(blind, parts({0, 1, 2, 3}));
      },
      throws_error(ErrorCode::invalid_argument, "draws nothing"));
}

// It was taken for a mistake of the library.
TEST_F(EagerEpochTest, AResultOfAnotherStructureIsRefused) {
  const Function pieces([](Iterator& it) {
    Nest::Items items;
    for (const at::Tensor& piece : it.next<at::Tensor>().split(4)) items.push_back(piece.sum());
    return Nest::list(std::move(items));
  });
  Epoch epoch = coordinator.begin_epoch(pieces, parts({0, 11, 11, 11}, 8));  // 8 and 3 elements
  EXPECT_TRUE(epoch.try_next());
  EXPECT_THAT([&] { epoch.try_next(); },
              throws_error(ErrorCode::invalid_argument, "the result of step 1 of worker:0"));
  EXPECT_THAT([&] { epoch.try_next(); },
              throws_error(ErrorCode::failed_precondition, "has ended with an error"));
  EXPECT_EQ(epoch.result().steps, 1U);
}

// The epoch went on to its end.
TEST_F(EagerEpochTest, AnErrorOfAClosureBesideItEndsIt) {
  const Function bad([] { return at::ones({2}).mm(at::ones({2})); });
  const EpochOptions options{.on_step = [&](const EpochStep&) { coordinator.schedule(bad); }};
  EXPECT_THAT(
      [&] {
        coordinator.run_epoch(count, parts({0, 5, 5, 22}), options);
      },
      throws_error(ErrorCode::invalid_argument, "self must be a matrix"));
  EXPECT_EQ(count_of_steps(), 1);
  EXPECT_TRUE(coordinator.done());
}

}  // namespace
}  // namespace cohort
