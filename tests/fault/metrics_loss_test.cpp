// SPDX-License-Identifier: Apache-2.0
// Metrics of parameter servers whose workers are killed have the numbers of one process.
#include <ATen/TensorOperators.h>
#include <ATen/core/TensorBody.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <utility>

#include "cohort/coordinator/cluster_coordinator.h"
#include "cohort/metrics/metrics.h"
#include "cohort/testing/cluster/test_cluster.h"
#include "cohort/testing/throws_error.h"

namespace cohort {
namespace {

using testing::TestCluster;
using testing::throws_error;

// Scores of four classes, labels and weights that follow from the numbers of the rows.
struct CountedMetrics {
  metrics::Mean mean{{.name = "loss"}};
  metrics::Accuracy accuracy;
  metrics::ConfusionMatrix matrix{{.classes = 4}};
  metrics::AUC auc{{.thresholds = 20}};

  void update(const at::Tensor& numbers) const {
    const at::Tensor x = numbers.to(at::kDouble);
    const at::Tensor labels = numbers.mul(7).remainder(4);
    const at::Tensor classes = at::arange(4, at::TensorOptions(at::kDouble));
    const at::Tensor scores = x.unsqueeze(1).mul(classes.add(1)).sin();
    const at::Tensor weights = numbers.remainder(3);
    mean.update(x.cos(), {.weights = weights});
    accuracy.update({.labels = labels, .predictions = scores});
    matrix.update({.labels = labels, .predictions = scores, .weights = weights.gt(0)});
    auc.update({.labels = labels.gt(1), .predictions = scores.select(1, 0).abs()});
  }
};

void expect_equal(const CountedMetrics& got, std::int64_t rows) {
  const CountedMetrics expected;
  expected.update(at::arange(rows, at::TensorOptions(at::kLong)));
  EXPECT_EQ(got.accuracy.rows(), rows);
  EXPECT_EQ(got.mean.rows(), expected.mean.rows());
  EXPECT_NEAR(got.mean.result(), expected.mean.result(), 1e-12);
  EXPECT_EQ(got.accuracy.result(), expected.accuracy.result());
  EXPECT_EQ(got.auc.result(), expected.auc.result());
  EXPECT_TRUE(at::equal(got.matrix.result(), expected.matrix.result()));
}

class MetricsLossTest : public ::testing::Test {
 protected:
  explicit MetricsLossTest(int workers = 2, ParameterServerOptions options = {},
                           CoordinatorOptions of_coordinator = {})
      : cluster({.workers = workers, .ps = 2, .command = {COHORT_COMMAND, "server"}}),
        strategy(cluster.resolver(), std::move(options)),
        coordinator(strategy, of_coordinator) {}

  template <class T>
  T made_there() {
    const auto scope = strategy.scope();
    return T();
  }
  void replace(const std::string& worker) {
    cluster.kill(worker);
    cluster.restart(worker);
  }

  TestCluster cluster;
  ParameterServerStrategy strategy;
  ClusterCoordinator coordinator;
};

TEST_F(MetricsLossTest, EachRowCountsOnce) {
  const auto all = made_there<CountedMetrics>();
  const Function of_epoch([&](Iterator& it) { all.update(it.next<at::Tensor>()); });
  int ended = 0;
  const auto on_step = [&](const EpochStep&) {
    if (++ended == 60) replace("worker:1");
  };
  const Dataset data = Dataset::range(1203).shuffle(100).batch(5);
  EXPECT_EQ(coordinator.run_epoch(of_epoch, data, {.on_step = on_step}).examples, 1203U);
  const std::uint64_t retries = coordinator.statistics().retries;
  EXPECT_GT(retries, 0U) << "the kill met no step";
  expect_equal(all, 1203);
  // The same on top, by closures that any worker may run.
  const Function step([&](const at::Tensor& numbers) { all.update(numbers); });
  constexpr std::int64_t kRows = 4;
  for (std::int64_t i = 1203; i < 2803; i += kRows) {
    coordinator.schedule(step, at::arange(i, i + kRows, at::TensorOptions(at::kLong)));
    if (i == 2003) replace("worker:0");
  }
  coordinator.join();
  EXPECT_GT(coordinator.statistics().retries, retries) << "the kill met no closure";
  expect_equal(all, 2803);
  all.accuracy.reset();
  EXPECT_EQ(all.accuracy.rows(), 0);
}

class MetricsOfServersTest : public MetricsLossTest {
 protected:
  MetricsOfServersTest() : MetricsLossTest(1) {}
};

TEST_F(MetricsOfServersTest, BadRowsOfAClosureAreCounted) {
  const auto accuracy = made_there<metrics::Accuracy>();
  const Function step([&](const at::Tensor& labels) {
    accuracy.update({.labels = labels, .predictions = at::zeros({3, 2})});
  });
  coordinator.schedule(step, at::arange(3, at::TensorOptions(at::kLong)));
  coordinator.join();
  EXPECT_THAT([&] { accuracy.result(); },
              throws_error(ErrorCode::invalid_argument, "got 1 others besides 2 good ones"));
  // The workers do not have the sums of a metric that is made outside of a scope.
  const metrics::Mean here;
  const Function other([&] { here.update(at::full({2}, 3)); });
  EXPECT_THAT([&] { coordinator.schedule(other); },
              throws_error(ErrorCode::invalid_argument, "mean/"));
}

// Outside of closures rows are counted, too, and refused at once.
TEST_F(MetricsOfServersTest, TheCoordinatorCountsItself) {
  const auto mean = made_there<metrics::Mean>();
  mean.update(at::full({2}, 3));
  strategy.run([&] { mean.update(at::full({1}, 6)); });
  EXPECT_EQ(mean.result(), 4);
  EXPECT_THAT([&] { mean.update(at::full({1}, std::nan(""))); },
              throws_error(ErrorCode::invalid_argument, "got nan in row 0 of 1"));
  EXPECT_EQ(mean.rows(), 3);
}

// Parts of a state on several servers could count a step that was sent again by halves.
class DividedMetricsTest : public MetricsLossTest {
 protected:
  DividedMetricsTest()
      : MetricsLossTest(1, {.partitioner = FixedShardsPartitioner(2)}, {.run_eagerly = true}) {}
};

TEST_F(DividedMetricsTest, TheStateOfAMetricIsOnOneServer) {
  const CountedMetrics all = made_there<CountedMetrics>();
  for (const metrics::Metric* metric :
       std::initializer_list<const metrics::Metric*>{&all.mean, &all.matrix, &all.auc}) {
    for (const Variable& each : metric->variables())
      EXPECT_TRUE(each.impl()->shards().empty()) << each.name();
  }
  const Function step([&](const at::Tensor& numbers) { all.update(numbers); });
  coordinator.schedule(step, at::arange(30, at::TensorOptions(at::kLong)));
  coordinator.join();
  expect_equal(all, 30);
}

}  // namespace
}  // namespace cohort
