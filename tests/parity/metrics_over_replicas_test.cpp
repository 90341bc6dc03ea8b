// SPDX-License-Identifier: Apache-2.0
// Metrics over replicas and workers, by run() and function(), have the numbers of one process.
#include <ATen/TensorOperators.h>
#include <ATen/core/TensorBody.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "cohort/cohort.h"
#include "cohort/testing/cpu_devices.h"
#include "cohort/testing/test_seed.h"
#include "cohort/testing/throws_error.h"

namespace cohort {
namespace {

using testing::throws_error;

constexpr std::int64_t kClasses = 4;

struct Rows {
  at::Tensor labels, scores, weights;

  static Rows random(std::int64_t count) {
    // Scores have equal ones, and weights are quarters, whose sums are exact.
    return {at::randint(kClasses, {count}, at::TensorOptions(at::kLong)),
            at::randint(12, {count, kClasses}, at::TensorOptions(at::kFloat)).div(16),
            at::randint(5, {count}, at::TensorOptions(at::kDouble)).div(4)};
  }
  Rows part(std::int64_t begin, std::int64_t end) const {
    return {labels.slice(0, begin, end), scores.slice(0, begin, end), weights.slice(0, begin, end)};
  }
};

// One metric of each kind.
struct AllMetrics {
  metrics::Mean mean;
  metrics::MeanSquaredError error;
  metrics::Accuracy accuracy, of_one_score{{.name = "of one score"}}, of_classes{{.name = "c"}};
  metrics::TopK top{{.k = 2}};
  metrics::AUC roc{{.thresholds = 30}},
      pr{{.name = "pr", .thresholds = 30, .curve = metrics::AUCCurve::precision_recall}};
  metrics::ConfusionMatrix matrix{{.classes = kClasses}},
      weighted{{.classes = kClasses, .name = "weighted", .is_weighted = true}};

  void update(const at::Tensor& labels, const at::Tensor& scores, const at::Tensor& weights) const {
    const at::Tensor first = scores.select(1, 0), is_even = labels.remainder(2).eq(0);
    mean.update(scores.exp(), {.weights = weights});
    error.update({.labels = labels, .predictions = first.sin(), .weights = weights});
    accuracy.update({.labels = labels, .predictions = scores, .weights = weights});
    of_one_score.update({.labels = is_even, .predictions = first, .weights = weights});
    of_classes.update({.labels = labels, .predictions = scores.argmax(1)});
    top.update({.labels = labels, .predictions = scores, .weights = weights});
    roc.update({.labels = is_even, .predictions = first, .weights = weights});
    pr.update({.labels = is_even, .predictions = first});
    matrix.update({.labels = labels, .predictions = scores, .weights = weights.gt(0)});
    weighted.update({.labels = labels, .predictions = scores, .weights = weights});
  }

  std::vector<double> exact() const {
    std::vector<double> all = {accuracy.result(), of_one_score.result(), of_classes.result(),
                               top.result(),      roc.result(),          pr.result()};
    for (const metrics::Metric* each : std::vector<const metrics::Metric*>{&mean, &error, &pr})
      all.push_back(static_cast<double>(each->rows()));
    for (const at::Tensor& each : {matrix.result(), weighted.result()}) {
      const at::Tensor flat = each.to(at::kDouble).flatten();
      for (std::int64_t i = 0; i < flat.numel(); ++i) all.push_back(flat[i].item<double>());
    }
    return all;
  }
  std::vector<double> rounded() const { return {mean.result(), error.result()}; }
  void reset() const {
    for (const metrics::Metric* each :
         std::vector<const metrics::Metric*>{&mean, &error, &accuracy, &of_one_score, &of_classes,
                                             &top, &roc, &pr, &matrix, &weighted})
      each->reset();
  }
};

AllMetrics metrics_of(Strategy& strategy) {
  const auto scope = strategy.scope();
  return {};
}

struct Numbers {
  std::vector<double> exact, rounded;
};

// One process counts all rows.
Numbers alone(const std::vector<Rows>& batches) {
  const AllMetrics all;
  for (const Rows& batch : batches) all.update(batch.labels, batch.scores, batch.weights);
  return {all.exact(), all.rounded()};
}

void expect_numbers(const AllMetrics& all, const Numbers& expected) {
  EXPECT_EQ(all.exact(), expected.exact);
  const std::vector<double> rounded = all.rounded();
  for (std::size_t i = 0; i < rounded.size(); ++i)
    EXPECT_NEAR(rounded[i], expected.rounded[i], 1e-12 * std::abs(expected.rounded[i])) << i;
}

class MetricsOverReplicas : public ::testing::Test {
 protected:
  MetricsOverReplicas() { at::manual_seed(seed_.value()); }

  std::size_t draw(std::size_t below) { return random_() % below; }
  // Batches of few sizes, each of which is traced.
  std::vector<Rows> draw_batches() {
    std::vector<Rows> batches = {Rows::random(16)};
    // Both labels of a curve have a weight.
    batches[0].labels.slice(0, 0, 2).copy_(at::arange(2, at::TensorOptions(at::kLong)));
    batches[0].weights.slice(0, 0, 2).fill_(1);
    for (std::size_t i = draw(4); i > 0; --i)
      batches.push_back(Rows::random(std::vector<std::int64_t>{0, 3, 16}[draw(3)]));
    return batches;
  }
  // Cuts a batch into parts, of which some may be empty.
  static PerReplica<at::Tensor> cut(const at::Tensor& rows, std::size_t replicas,
                                    const std::vector<std::int64_t>& bounds) {
    std::vector<at::Tensor> parts;
    for (std::size_t i = 0; i < replicas; ++i)
      parts.push_back(rows.slice(0, bounds[i], bounds[i + 1]));
    return PerReplica<at::Tensor>(std::move(parts));
  }
  std::vector<std::int64_t> draw_bounds(std::size_t replicas, std::int64_t rows) {
    std::vector<std::int64_t> bounds = {0, rows};
    for (std::size_t i = 1; i < replicas; ++i)
      bounds.push_back(std::min<std::int64_t>(rows, static_cast<std::int64_t>(draw(3)) * 4));
    std::sort(bounds.begin(), bounds.end());
    return bounds;
  }

  const testing::TestSeed seed_;
  std::mt19937 random_{seed_.value()};
};

TEST_F(MetricsOverReplicas, RunAndFunctionCountAsOneProcess) {
  for (const int replicas : {1, 2, 3, 4}) {
    MirroredStrategy strategy(testing::cpu_devices(replicas));
    const AllMetrics all = metrics_of(strategy);
    const auto step = [&](const at::Tensor& labels, const at::Tensor& scores,
                          const at::Tensor& weights) { all.update(labels, scores, weights); };
    auto traced = strategy.function(step);
    for (int program = 0; program < 4 && !HasFailure(); ++program) {
      SCOPED_TRACE(std::to_string(replicas) + " replicas, program " + std::to_string(program));
      const std::vector<Rows> batches = draw_batches();
      all.reset();
      for (const Rows& batch : batches) {
        const auto count = static_cast<std::size_t>(replicas);
        const auto bounds = draw_bounds(count, batch.labels.size(0));
        const auto labels = cut(batch.labels, count, bounds),
                   scores = cut(batch.scores, count, bounds),
                   weights = cut(batch.weights, count, bounds);
        if (draw(2) == 0) {
          strategy.run(step, labels, scores, weights);
        } else {
          traced(labels, scores, weights);
        }
      }
      expect_numbers(all, alone(batches));
    }
  }
}

TEST_F(MetricsOverReplicas, WorkersCountAsOneProcess) {
  const std::vector<Rows> batches = draw_batches();
  const Numbers expected = alone(batches);
  constexpr int kWorkers = 3, kReplicas = 2;
  std::vector<std::vector<std::int64_t>> bounds;
  for (const Rows& batch : batches)
    bounds.push_back(draw_bounds(kWorkers * kReplicas, batch.labels.size(0)));
  const InProcessWorkers workers(kWorkers);
  std::vector<std::thread> threads;
  for (int worker = 0; worker < kWorkers; ++worker) {
    threads.emplace_back([&, worker] {
      MultiWorkerMirroredStrategy strategy(workers.group(worker),
                                           {.devices = testing::cpu_devices(kReplicas)});
      const AllMetrics all = metrics_of(strategy);
      for (int pass = 0; pass < 2; ++pass) {
        for (std::size_t i = 0; i < batches.size(); ++i) {
          const auto first = static_cast<std::size_t>(worker) * kReplicas;
          const std::vector<std::int64_t> own(bounds[i].begin() + static_cast<long>(first),
                                              bounds[i].begin() + static_cast<long>(first) + 3);
          strategy.run([&](const at::Tensor& labels, const at::Tensor& scores,
                           const at::Tensor& weights) { all.update(labels, scores, weights); },
                       cut(batches[i].labels, kReplicas, own),
                       cut(batches[i].scores, kReplicas, own),
                       cut(batches[i].weights, kReplicas, own));
        }
        expect_numbers(all, expected);
        all.reset();
      }
      EXPECT_EQ(all.mean.rows(), 0);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

class MetricsOfTwoReplicas : public ::testing::Test {
 protected:
  static at::Tensor floats(const std::vector<float>& values) { return at::tensor(values); }

  static constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
  MirroredStrategy two_{testing::cpu_devices(2)};
  StrategyScope scope_{two_};
};

// A trace reads no values: such rows would become NaN, or another class, without a word.
TEST_F(MetricsOfTwoReplicas, BadRowsOfATracedStepAreCounted) {
  const metrics::Mean mean({.name = "loss"});
  const metrics::TopK top({.k = 1});
  const metrics::ConfusionMatrix matrix({.classes = 2});
  const metrics::AUC auc;
  auto step = two_.function([&](const at::Tensor& x) {
    mean.update(x);
    top.update({.labels = at::zeros({3}, at::kLong), .predictions = x.view({3, 1}).expand({3, 2})});
    matrix.update({.labels = x.nan_to_num(7).to(at::kLong), .predictions = x.gt(0).to(at::kLong)});
    auc.update({.labels = x.gt(0), .predictions = x, .weights = x.ne(1)});
  });
  step(PerReplica<at::Tensor>({floats({0, 0.5, 1}), floats({0.5, kNaN, 1})}));
  const auto names = [](const std::string& metric) {
    return throws_error(ErrorCode::invalid_argument,
                        "got 1 others besides 5 good ones (metric '" + metric + "')");
  };
  EXPECT_THAT([&] { mean.result(); }, names("loss"));
  EXPECT_THAT([&] { mean.rows(); }, names("loss"));
  EXPECT_THAT([&] { top.result(); }, names("top_k_accuracy"));
  EXPECT_THAT([&] { matrix.result(); }, names("confusion_matrix"));
  EXPECT_THAT([&] { auc.result(); },
              throws_error(ErrorCode::invalid_argument, "1 others besides 3 good ones"));
  mean.reset();
  step(PerReplica<at::Tensor>({floats({0, 0.5, 1}), floats({0.5, 0, 1})}));
  EXPECT_EQ(mean.result(), 0.5);
}

TEST_F(MetricsOfTwoReplicas, ABadRowInOneReplicaUndoesTheStep) {
  const metrics::Mean mean;
  const auto step = [&](const at::Tensor& x) { mean.update(x); };
  two_.run(step, PerReplica<at::Tensor>({floats({1}), floats({3})}));
  EXPECT_THAT(
      [&] {
        two_.run(step, PerReplica<at::Tensor>({floats({5}), floats({kNaN})}));
      },
      throws_error(ErrorCode::invalid_argument, "got nan in row 0 of 1 (metric 'mean')"));
  EXPECT_EQ(mean.result(), 2);
  EXPECT_EQ(mean.rows(), 2);
}

TEST_F(MetricsOfTwoReplicas, ShapesAreCheckedInATrace) {
  const metrics::Accuracy accuracy;
  auto step = two_.function([&](const at::Tensor& x) {
    accuracy.update({.labels = at::zeros({2}, at::kLong), .predictions = x});
  });
  EXPECT_THAT(
      [&] {
        step(at::zeros({3, 4}));
      },
      throws_error(ErrorCode::invalid_argument, "expected labels [3], one for each row"));
}

// A replica knows only its own rows: a number of it would be wrong without a word.
TEST_F(MetricsOfTwoReplicas, ResultsAreReadOutsideOfSteps) {
  const metrics::Mean mean;
  const auto says = [](const std::string& call) {
    return throws_error(ErrorCode::failed_precondition,
                        "[metrics." + call + "] expected a call outside of a step");
  };
  EXPECT_THAT([&] { two_.run([&] { mean.result(); }); }, says("result"));
  EXPECT_THAT([&] { two_.run([&] { mean.rows(); }); }, says("rows"));
  EXPECT_THAT([&] { two_.run([&] { mean.reset(); }); }, says("reset"));
  auto step = two_.function([&] { return at::full({}, mean.result()); });
  EXPECT_THAT([&] { step(); }, says("result"));
}

TEST_F(MetricsOfTwoReplicas, RowsAreAddedInReplicas) {
  const metrics::Mean mean;
  EXPECT_THAT([&] { mean.update(at::ones({2})); },
              throws_error(ErrorCode::invalid_argument, "whose value is the sum of its replicas"));
}

TEST_F(MetricsOfTwoReplicas, AMetricWithoutAStrategyCountsInNone) {
  scope_.exit();
  const metrics::Mean mean;
  EXPECT_THAT([&] { two_.run([&] { mean.update(at::ones({2})); }); },
              throws_error(ErrorCode::unimplemented, "2 replicas"));
  auto step = two_.function([&] { mean.update(at::ones({2})); });
  EXPECT_THROW(step(), Error);
  EXPECT_EQ(mean.rows(), 0);
  mean.update(at::ones({2}));
  EXPECT_EQ(mean.result(), 1);
}

TEST_F(MetricsOfTwoReplicas, ANameIsTakenOnce) {
  std::optional<metrics::Mean> mean(std::in_place);
  EXPECT_THAT([&] { metrics::Mean second; },
              throws_error(ErrorCode::already_exists, "got 'mean/rows'"));
  mean.reset();
  EXPECT_NO_THROW(metrics::Mean());
}

// Saved as a sum: a checkpoint loads on another number of replicas.
TEST_F(MetricsOfTwoReplicas, TheStateIsSavedAsASum) {
  const std::string path = ::testing::TempDir() + "metrics_state.safetensors";
  const metrics::Mean mean;
  two_.run([&] { mean.update(at::full({3}, get_replica_context()->local_replica_id())); });
  const auto named = [](const metrics::Metric& metric) {
    std::map<std::string, Variable> all;
    for (const Variable& each : metric.variables()) all.emplace(each.name(), each);
    return all;
  };
  save_values(path, named(mean));
  scope_.exit();
  MirroredStrategy three(testing::cpu_devices(3));
  const auto scope = three.scope();
  const metrics::Mean restored;
  restore_values(path, named(restored));
  EXPECT_EQ(restored.rows(), 6);
  three.run([&] { restored.update(at::full({2}, 1)); });
  EXPECT_DOUBLE_EQ(restored.result(), 9 / 12.0);
}

}  // namespace
}  // namespace cohort
