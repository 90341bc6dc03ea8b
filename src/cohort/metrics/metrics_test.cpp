// SPDX-License-Identifier: Apache-2.0
// Values of metrics in plain code, against keras's and scikit-learn's definitions.
#include "cohort/metrics/metrics.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/TensorBody.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <utility>
#include <vector>

#include "cohort/testing/test_seed.h"
#include "cohort/testing/throws_error.h"

namespace cohort::metrics {
namespace {

using testing::throws_error;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

at::Tensor doubles(const std::vector<double>& values) {
  return at::tensor(values, at::TensorOptions(at::kDouble));
}
at::Tensor floats(const std::vector<double>& values) { return doubles(values).to(at::kFloat); }
at::Tensor ints(const std::vector<std::int64_t>& values) {
  return at::tensor(values, at::TensorOptions(at::kLong));
}
auto refuses(const std::string& words) { return throws_error(ErrorCode::invalid_argument, words); }

TEST(Mean, RowsCountByTheirWeights) {
  const Mean mean;
  mean.update(floats({1, 2, 6}));
  EXPECT_DOUBLE_EQ(mean.result(), 3);
  mean.update(floats({10, 20}).view({2, 1}), {.weights = ints({0, 3})});
  EXPECT_DOUBLE_EQ(mean.result(), (9 + 60) / 6.0);
  EXPECT_EQ(mean.rows(), 4);
}

TEST(Mean, RowsOfSeveralNumbersCountWithTheirMean) {
  const Mean mean;
  mean.update(floats({1, 3, 10, 30}).view({2, 2}), {.weights = floats({1, 0.5})});
  EXPECT_DOUBLE_EQ(mean.result(), (2 + 10) / 1.5);
}

TEST(Mean, OneNumberIsOneRow) {
  const Mean mean;
  mean.update(at::scalar_tensor(2.0));
  mean.update(at::scalar_tensor(8), {.weights = at::scalar_tensor(3)});
  EXPECT_DOUBLE_EQ(mean.result(), 26 / 4.0);
  EXPECT_EQ(mean.rows(), 2);
}

// A sum in float32 would lose what is below 1 here.
TEST(Mean, SumsAreFloat64) {
  const Mean mean;
  mean.update(at::full({10'000}, 16'777'216.0F));
  mean.update(at::ones({10'000}, at::TensorOptions(at::kHalf)));
  EXPECT_DOUBLE_EQ(mean.result(), (16'777'216.0 + 1) / 2);
}

TEST(Mean, WithoutRowsThereIsNone) {
  const Mean mean({.name = "loss"});
  EXPECT_THAT([&] { mean.result(); },
              throws_error(ErrorCode::failed_precondition, "expected rows in metric 'loss'"));
  mean.update(at::empty({0}));
  mean.update(floats({5}), {.weights = floats({0})});
  EXPECT_EQ(mean.rows(), 0);
  EXPECT_THAT([&] { mean.result(); }, throws_error(ErrorCode::failed_precondition, "got none"));
}

TEST(Mean, ResetForgetsAllRows) {
  const Mean mean;
  mean.update(floats({1, 2}));
  mean.reset();
  EXPECT_EQ(mean.rows(), 0);
  mean.update(floats({7}));
  EXPECT_DOUBLE_EQ(mean.result(), 7);
}

TEST(Mean, CopiesAreOneMetric) {
  const Mean mean;
  const Mean copy = mean;
  copy.update(floats({4}));
  EXPECT_DOUBLE_EQ(mean.result(), 4);
}

TEST(Mean, NoGradientFlows) {
  const Mean mean;
  const at::Tensor losses = floats({1, 3}).requires_grad_();
  mean.update(losses * 2);
  EXPECT_DOUBLE_EQ(mean.result(), 4);
  for (const Variable& each : mean.variables()) EXPECT_FALSE(each.read().requires_grad());
}

TEST(Mean, BadRowsAreRefusedAndChangeNothing) {
  const Mean mean({.name = "loss"});
  mean.update(floats({1}));
  EXPECT_THAT(
      [&] {
        mean.update(floats({1, 2, kNaN}));
      },
      refuses("expected finite values, got nan in row 2 of 3 (metric 'loss')"));
  EXPECT_THAT([&] { mean.update(floats({kInfinity})); }, refuses("got inf in row 0"));
  EXPECT_THAT(
      [&] {
        mean.update(floats({1, 2}), {.weights = floats({1, -1})});
      },
      refuses("expected finite weights that are not negative, got -1 in row 1"));
  EXPECT_THAT([&] { mean.update(floats({1}), {.weights = floats({kNaN})}); }, refuses("got nan"));
  EXPECT_THAT([&] { mean.update({}); }, refuses("got an undefined tensor (metric 'loss')"));
  EXPECT_THAT(
      [&] {
        mean.update(floats({1, 2}), {.weights = floats({1, 1, 1})});
      },
      refuses("expected weights [2], one for each row of float32[2], got float32[3]"));
  EXPECT_DOUBLE_EQ(mean.result(), 1);
  EXPECT_EQ(mean.rows(), 1);
}

TEST(Mean, ARowOfWeightZeroMayHaveAnything) {
  const Mean mean;
  mean.update(floats({kNaN, 2}), {.weights = floats({0, 1})});
  EXPECT_DOUBLE_EQ(mean.result(), 2);
  EXPECT_EQ(mean.rows(), 1);
}

TEST(MeanSquaredError, IsTheMeanOverRows) {
  const MeanSquaredError error;
  error.update({.labels = floats({1, 2}), .predictions = floats({2, 4}).view({2, 1})});
  EXPECT_DOUBLE_EQ(error.result(), 2.5);
  error.update({.labels = ints({0, 0, 1, 1}).view({2, 2}),
                .predictions = floats({1, 2, 1, 1}).view({2, 2}),
                .weights = floats({2, 1})});
  EXPECT_DOUBLE_EQ(error.result(), (5 + 5) / 5.0);
}

TEST(MeanSquaredError, ShapesAndValuesAreChecked) {
  const MeanSquaredError error;
  EXPECT_THAT(
      [&] {
        error.update({.labels = floats({1, 2}), .predictions = at::zeros({2, 2})});
      },
      refuses("of equal sizes, got float32[2] and float32[2, 2]"));
  EXPECT_THAT([&] { error.update({.labels = floats({kNaN}), .predictions = floats({1})}); },
              refuses("whose squared error is finite, got nan in row 0 of 1"));
  EXPECT_THAT([&] { error.update({.predictions = floats({1})}); }, refuses("expected labels"));
  EXPECT_THAT([&] { error.update({.labels = floats({1})}); }, refuses("expected predictions"));
  EXPECT_THAT([&] { error.update({.labels = floats({1}), .predictions = at::scalar_tensor(1.0)}); },
              refuses("with a dimension of rows"));
}

TEST(Accuracy, TheLargestScoreIsTheClass) {
  const Accuracy accuracy;
  const at::Tensor scores = floats({1, 2, 0, 5, 5, 0, 0, 0, 9}).view({3, 3});
  accuracy.update({.labels = ints({1, 1, 2}), .predictions = scores});
  EXPECT_DOUBLE_EQ(accuracy.result(), 2 / 3.0) << "of equal scores the first is the class";
  accuracy.update({.labels = ints({0, 0, 2}).view({3, 1}).to(at::kByte),
                   .predictions = scores.to(at::kBFloat16),
                   .weights = ints({1, 2, 3})});
  EXPECT_DOUBLE_EQ(accuracy.result(), (2 + 5) / 9.0);
  EXPECT_EQ(accuracy.rows(), 6);
}

TEST(Accuracy, OneScoreIsComparedWithTheThreshold) {
  const Accuracy accuracy;
  const at::Tensor scores = floats({0.1, 0.5, 0.6, 0.9}).view({4, 1});
  accuracy.update({.labels = ints({0, 0, 1, 0}), .predictions = scores});
  EXPECT_DOUBLE_EQ(accuracy.result(), 3 / 4.0) << "0.5 is not above 0.5";
  const Accuracy of_logits({.name = "of logits", .threshold = 0});
  of_logits.update({.labels = floats({1, 0}), .predictions = floats({0.2, -3})});
  of_logits.update({.labels = floats({1, 0}).gt(0), .predictions = floats({-1, 3})});
  EXPECT_DOUBLE_EQ(of_logits.result(), 0.5);
  EXPECT_THAT([] { Accuracy({.threshold = kNaN}); }, refuses("finite threshold, got nan"));
}

TEST(Accuracy, IntegersAreClasses) {
  const Accuracy accuracy;
  accuracy.update({.labels = ints({7, 8, 9}), .predictions = ints({7, 7, 9}).to(at::kInt)});
  EXPECT_DOUBLE_EQ(accuracy.result(), 2 / 3.0);
}

TEST(Accuracy, AnEmptyBatchChangesNothing) {
  const Accuracy accuracy;
  const TopK top({.k = 2});
  const ConfusionMatrix matrix({.classes = 3});
  const LabeledRows none{.labels = ints({}), .predictions = at::empty({0, 3})};
  accuracy.update(none);
  top.update(none);
  matrix.update(none);
  EXPECT_EQ(accuracy.rows() + top.rows() + matrix.rows(), 0);
}

TEST(Accuracy, LabelsAndScoresAreChecked) {
  const Accuracy accuracy({.name = "hits"});
  const at::Tensor scores = at::zeros({2, 3});
  const auto update = [&](const at::Tensor& labels, const at::Tensor& predictions) {
    return [&accuracy, labels, predictions] {
      accuracy.update({.labels = labels, .predictions = predictions});
    };
  };
  EXPECT_THAT(update(ints({0, 3}), scores),
              refuses("expected classes from 0 to 2, got 3 in row 1 of 2 (metric 'hits')"));
  EXPECT_THAT(update(ints({-1, 0}), scores), refuses("got -1 in row 0"));
  EXPECT_THAT(update(ints({-1}), ints({1})), refuses("classes that are not negative, got -1"));
  EXPECT_THAT(update(ints({1}), ints({-1})), refuses("classes that are not negative, got -1"));
  EXPECT_THAT(update(floats({0, 1}), scores), refuses("expected classes as integers, got float32"));
  EXPECT_THAT(update(ints({0, 1, 2}), scores),
              refuses("one for each row of predictions float32[2, 3], got int64[3]"));
  EXPECT_THAT(update(scores.to(at::kLong), scores), refuses("for one-hot labels pass"));
  EXPECT_THAT(update(ints({0, 1}), at::zeros({2, 3, 4})), refuses("flatten() the rows"));
  EXPECT_THAT(update(ints({0, 1}), floats({0, 0, kNaN, 0, 0, 0}).view({2, 3})),
              refuses("expected predictions without NaN, got nan in row 0 of 2"));
  EXPECT_THAT(update(ints({0, 1}), floats({0.5, kNaN})), refuses("got nan in row 1"));
  EXPECT_THAT(update(ints({0, 2}), floats({0.5, 0.5})), refuses("labels 0 and 1, got 2 in row 1"));
  EXPECT_THAT(update(floats({kNaN}), floats({0.5})), refuses("labels 0 and 1, got nan"));
  EXPECT_EQ(accuracy.rows(), 0);
}

TEST(TopK, EqualScoresAtTheBorderAreAmongThem) {
  const TopK top({.k = 2});
  const at::Tensor scores = floats({9, 5, 5, 1, 4, 3, 2, 1}).view({2, 4});
  for (std::int64_t label = 0; label < 4; ++label)
    top.update({.labels = ints({label, label}), .predictions = scores});
  EXPECT_DOUBLE_EQ(top.result(), (3 + 2) / 8.0);
}

TEST(TopK, WhatItTakesIsChecked) {
  EXPECT_THAT([] { TopK({.k = 0}); }, refuses("expected k > 0, got 0"));
  const TopK top({.k = 4});
  EXPECT_THAT(
      [&] {
        top.update({.labels = ints({0}), .predictions = at::zeros({1, 3})});
      },
      refuses("of at least 4 classes, got float32[1, 3] for labels int64[1]"));
  const at::Tensor scores = floats({0, 1, 2, kNaN, 0, 1, 2, 3}).view({2, 4});
  EXPECT_THAT(
      [&] {
        top.update({.labels = ints({0, 0}), .predictions = scores});
      },
      refuses("without NaN, got nan in row 0"));
  EXPECT_THAT(
      [&] {
        top.update({.labels = ints({4, 0}), .predictions = at::zeros({2, 4})});
      },
      refuses("classes from 0 to 3, got 4 in row 0"));
}

TEST(ConfusionMatrix, RowsAreLabels) {
  const ConfusionMatrix matrix({.classes = 3});
  EXPECT_TRUE(at::equal(matrix.result(), at::zeros({3, 3}, at::TensorOptions(at::kLong))));
  matrix.update({.labels = ints({0, 1, 2, 2}), .predictions = ints({0, 2, 2, 2})});
  matrix.update({.labels = ints({1}), .predictions = floats({1, 0, 0}).view({1, 3})});
  matrix.update({.labels = ints({-100, 0}),
                 .predictions = ints({0, 1}),
                 .weights = ints({0, 1}).to(at::kBool)});
  EXPECT_TRUE(at::equal(matrix.result(), ints({1, 1, 0, 1, 0, 1, 0, 0, 2}).view({3, 3})));
  EXPECT_EQ(matrix.rows(), 6);
}

TEST(ConfusionMatrix, WeightsAreSummedWhereItIsWeighted) {
  const ConfusionMatrix matrix({.classes = 2, .is_weighted = true});
  matrix.update({.labels = ints({0, 0, 1}),
                 .predictions = ints({1, 1, 1}),
                 .weights = floats({0.5, 0.25, 2})});
  EXPECT_TRUE(at::equal(matrix.result(), doubles({0, 0.75, 0, 2}).view({2, 2})));
  const ConfusionMatrix counts({.classes = 2});
  EXPECT_THAT(
      [&] {
        counts.update({.labels = ints({0}), .predictions = ints({1}), .weights = floats({0.5})});
      },
      refuses("weights 0 and 1 (or ConfusionMatrixOptions::is_weighted), got 0.5"));
  EXPECT_EQ(counts.rows(), 0);
}

TEST(ConfusionMatrix, WhatItTakesIsChecked) {
  EXPECT_THAT([] { ConfusionMatrix({}); }, refuses("expected classes > 0, got 0"));
  const ConfusionMatrix matrix({.classes = 2});
  EXPECT_THAT(
      [&] {
        matrix.update({.labels = ints({0}), .predictions = at::zeros({1, 3})});
      },
      refuses("scores [rows, 2], got float32[1, 3] for labels int64[1]"));
  EXPECT_THAT([&] { matrix.update({.labels = ints({0}), .predictions = ints({2})}); },
              refuses("classes from 0 to 1, got 2"));
  EXPECT_THAT([&] { matrix.update({.labels = ints({0}), .predictions = floats({0})}); },
              refuses("expected classes as integers, got float32[1]"));
}

// keras's documentation: m.update_state([0, 0, 1, 1], [0, 0.5, 0.3, 0.9]) with 3 thresholds.
TEST(AUC, HasTheNumbersOfKerassDocumentation) {
  const AUC auc({.thresholds = 3});
  const at::Tensor labels = ints({0, 0, 1, 1}), predictions = floats({0, 0.5, 0.3, 0.9});
  auc.update({.labels = labels, .predictions = predictions});
  EXPECT_DOUBLE_EQ(auc.result(), 0.75);
  auc.reset();
  auc.update({.labels = labels, .predictions = predictions, .weights = ints({1, 0, 0, 1})});
  EXPECT_DOUBLE_EQ(auc.result(), 1);
}

// tp and fp at each threshold by comparison, and then keras's formulas.
struct NaiveCurve {
  std::vector<double> tp, fp;
  NaiveCurve(const std::vector<double>& labels, const std::vector<double>& scores,
             const std::vector<double>& weights, int thresholds) {
    for (int t = 0; t < thresholds; ++t) {
      const double least = t == 0                ? -1e-7
                           : t == thresholds - 1 ? 1 + 1e-7
                                                 : static_cast<double>(t) / (thresholds - 1);
      tp.push_back(0);
      fp.push_back(0);
      for (std::size_t i = 0; i < labels.size(); ++i) {
        if (scores[i] > least) (labels[i] == 1 ? tp : fp).back() += weights[i];
      }
    }
  }
  double roc() const {
    double area = 0;
    for (std::size_t i = 0; i + 1 < tp.size(); ++i) {
      const double recall = (tp[i] + tp[i + 1]) / tp[0] / 2;
      area += (fp[i] - fp[i + 1]) / fp[0] * recall;
    }
    return area;
  }
  double precision_recall() const {
    double area = 0;
    for (std::size_t i = 0; i + 1 < tp.size(); ++i) {
      const double dtp = tp[i] - tp[i + 1], p = tp[i] + fp[i], p_next = tp[i + 1] + fp[i + 1];
      const double slope = p > p_next ? dtp / (p - p_next) : 0;
      const double intercept = tp[i + 1] - slope * p_next;
      const double ratio = p > 0 && p_next > 0 ? p / p_next : 1;
      area += slope * (dtp + intercept * std::log(ratio)) / tp[0];
    }
    return area;
  }
};

TEST(AUC, EqualsANaiveProgram) {
  const testing::TestSeed seed;
  std::mt19937 random(seed.value());
  const AUC roc({.thresholds = 50}), pr({.thresholds = 50, .curve = AUCCurve::precision_recall});
  const AUC of_logits({.thresholds = 50, .from_logits = true});
  std::vector<double> labels, scores, weights;
  for (int i = 0; i < 500; ++i) {
    labels.push_back(static_cast<double>(random() % 2));
    scores.push_back(static_cast<double>(random() % 1000'003) / 1'000'003);
    weights.push_back(static_cast<double>(random() % 3));
  }
  // The least and the largest prediction belong to the first and the last histogram.
  labels.insert(labels.end(), {1, 0, 1, 0});
  scores.insert(scores.end(), {0, 0, 1, 1});
  weights.insert(weights.end(), {1, 1, 1, 1});
  const LabeledRows batch{
      .labels = doubles(labels), .predictions = doubles(scores), .weights = doubles(weights)};
  roc.update(batch);
  pr.update(batch);
  of_logits.update({batch.labels, batch.predictions.logit(), batch.weights});
  const NaiveCurve naive(labels, scores, weights, 50);
  EXPECT_NEAR(roc.result(), naive.roc(), 1e-12);
  EXPECT_NEAR(pr.result(), naive.precision_recall(), 1e-12);
  EXPECT_NEAR(of_logits.result(), naive.roc(), 1e-9) << "a logit may round over a threshold";
}

// The exact area is the part of pairs in which the positive row has the larger score.
TEST(AUC, ManyThresholdsGiveTheExactArea) {
  const AUC auc({.thresholds = 101});
  std::vector<double> labels, scores;
  double right = 0;
  for (int i = 0; i < 100; ++i) {
    labels.push_back(i * i % 7 < 3 ? 0 : 1);
    scores.push_back((i + 0.5) / 100);
  }
  for (std::size_t i = 0; i < 100; ++i)
    for (std::size_t k = 0; k < i; ++k) right += labels[i] == 1 && labels[k] == 0;
  const auto positives = static_cast<double>(std::count(labels.begin(), labels.end(), 1));
  auc.update({.labels = doubles(labels), .predictions = doubles(scores)});
  EXPECT_NEAR(auc.result(), right / positives / (100 - positives), 1e-12);
}

TEST(AUC, WithoutBothKindsOfRowsThereIsNone) {
  const AUC auc, pr({.curve = AUCCurve::precision_recall});
  EXPECT_THAT([&] { auc.result(); },
              throws_error(ErrorCode::failed_precondition, "expected rows in metric 'auc'"));
  const LabeledRows positive{.labels = ints({1, 1}), .predictions = floats({0.2, 0.8})};
  auc.update(positive);
  pr.update(positive);
  EXPECT_THAT([&] { auc.result(); },
              throws_error(ErrorCode::failed_precondition, "2 positive and 0 negative ones"));
  EXPECT_DOUBLE_EQ(pr.result(), 1);
}

TEST(AUC, WhatItTakesIsChecked) {
  EXPECT_THAT([] { AUC({.thresholds = 1}); }, refuses("expected at least 2 thresholds, got 1"));
  const AUC auc;
  const auto update = [&](const at::Tensor& labels, const at::Tensor& predictions) {
    return
        [&auc, labels, predictions] { auc.update({.labels = labels, .predictions = predictions}); };
  };
  EXPECT_THAT(update(ints({0}), floats({1.5})), refuses("predictions from 0 to 1 (or AUCOptions"));
  EXPECT_THAT(update(ints({0}), floats({kNaN})), refuses("got nan in row 0"));
  EXPECT_THAT(update(ints({2}), floats({0.5})), refuses("labels 0 and 1, got 2"));
  EXPECT_THAT(update(ints({0}), at::zeros({1, 2})), refuses("of two classes pass the scores"));
  EXPECT_THAT(update(ints({0, 1}), floats({0.5})), refuses("expected labels [1]"));
  EXPECT_EQ(auc.rows(), 0);
}

}  // namespace
}  // namespace cohort::metrics
