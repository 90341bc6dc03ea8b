// SPDX-License-Identifier: Apache-2.0
// Numbers that say how good a model is (tf.keras.metrics), summed over replicas, workers and
// parameter servers.
//
//   const auto scope = strategy.scope();  // where the sums are kept; without one: in this process
//   const metrics::Accuracy accuracy;
//   strategy.run([&](const at::Tensor& x, const at::Tensor& y) {
//     accuracy.update({.labels = y, .predictions = net->forward(x)});
//   }, batch);
//   std::printf("%.4f\n", accuracy.result());
//   accuracy.reset();
//
// The sums of a metric are variables of the strategy that is current where the metric is made. So
// update() is the same in plain code, in run(), in function(), and in steps of a
// ClusterCoordinator, where a step that runs again after the loss of a worker counts once. Sums are
// float64 and numbers of rows are int64: the result over replicas, workers and servers is that of
// one process, up to the order in which float64 numbers are added; whole numbers below 2^53 are
// exact.
//
// A row with a NaN, or with a label that is none, never becomes a part of a number. update() throws
// invalid_argument that names the row where it can read values: outside of a trace, on the CPU.
// Otherwise it leaves such rows out and counts them, and result() throws invalid_argument with
// their number until reset(). A row of weight 0 does not count, whatever is in it: a row that only
// fills a batch up.
//
// Shapes and dtypes are checked by update() everywhere, also in a trace: invalid_argument. Tensors
// of a metric are on one device. No gradient flows through update().
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cohort/core/export.h"
#include "cohort/variable/variable.h"

namespace cohort::metrics {

class MetricState;  // metrics/metric_state.h

// The base of all metrics; as a type of its own, any metric. A shared handle: a step may capture a
// metric by value. Thread-safe.
class COHORT_API Metric {
 public:
  const std::string& name() const;
  // The number of rows that were counted since the last reset(): after an evaluation, all of the
  // dataset. Where several workers train together, all make this call. Throws as result() does,
  // but returns 0 where there is no row.
  std::int64_t rows() const;
  // Forgets all rows (keras's reset_state()). Where several workers train together, all make this
  // call; on parameter servers after join(). Throws failed_precondition in a step.
  void reset() const;
  // The variables "<name>/rows", "<name>/bad_rows" and "<name>/sums" that keep the state.
  std::vector<Variable> variables() const;

 protected:
  explicit Metric(std::shared_ptr<const MetricState> state);
  const MetricState& state() const { return *state_; }

 private:
  std::shared_ptr<const MetricState> state_;
};

// The rows of a batch; labels are keras's y_true, predictions its y_pred. A tensor of one number
// for each row may be [rows] or [rows, 1].
struct LabeledRows {
  at::Tensor labels = {};
  at::Tensor predictions = {};
  // [rows], of any number type, finite and not negative (keras's sample_weight); undefined: each
  // row has weight 1.
  at::Tensor weights = {};
};
struct WeightOptions {
  at::Tensor weights = {};  // as those of LabeledRows
};

// A name that no other metric of the strategy has; the constructor throws already_exists otherwise.
struct MeanOptions {
  std::string name = "mean";
};
// The mean of values, for instance of the losses of each row (tf.keras.metrics.Mean).
class COHORT_API Mean : public Metric {
 public:
  Mean() : Mean(MeanOptions()) {}
  explicit Mean(const MeanOptions& options);
  // `values`: numbers [rows, …], of which each row counts with its mean; or one number, which is
  // one row. A mean of a batch has the weight of its rows: update(loss, {.weights = number of
  // rows}). A loss of average_loss() is no mean, but a part of one: take the losses of the rows.
  // Besides NaN, infinite values are refused, since no other value could change their sum.
  void update(const at::Tensor& values, const WeightOptions& options = {}) const;
  // Throws failed_precondition if no row was counted, where keras returns 0, and in a step;
  // invalid_argument if steps have left out bad rows; the errors of Variable::read(). Where several
  // workers train together, all make this call; on parameter servers after join().
  double result() const;
};

struct MeanSquaredErrorOptions {
  std::string name = "mean_squared_error";
};
// The mean of the squared differences of labels and predictions
// (tf.keras.metrics.MeanSquaredError). Each row counts with the mean over its numbers, also if it
// is one number, where keras takes one mean for the whole batch.
class COHORT_API MeanSquaredError : public Metric {
 public:
  MeanSquaredError() : MeanSquaredError(MeanSquaredErrorOptions()) {}
  explicit MeanSquaredError(const MeanSquaredErrorOptions& options);
  // Labels and predictions: numbers [rows, …] of equal sizes. Besides NaN, infinite differences are
  // refused.
  void update(const LabeledRows& batch) const;
  double result() const;  // throws as Mean::result() does
};

struct AccuracyOptions {
  std::string name = "accuracy";
  // A prediction of one floating-point number for each row is class 1 above this, else class 0: 0.5
  // for probabilities, 0 for logits.
  double threshold = 0.5;
};
// The part of rows whose predicted class is the label. Which of keras's metrics it is depends on
// the predictions:
// - floating-point [rows, classes]: scores, of which the largest is the class, the first one of
//   equal ones (SparseCategoricalAccuracy);
// - floating-point [rows]: compared with the threshold (BinaryAccuracy);
// - integers [rows]: classes (Accuracy).
class COHORT_API Accuracy : public Metric {
 public:
  Accuracy() : Accuracy(AccuracyOptions()) {}
  // Throws invalid_argument for a threshold that is not finite.
  explicit Accuracy(const AccuracyOptions& options);
  // Labels: integers [rows], below the number of classes where that is known, else not negative;
  // for one-hot labels pass labels.argmax(1). With a threshold they may also be bool, or
  // floating-point 0 and 1.
  void update(const LabeledRows& batch) const;
  double result() const;  // throws as Mean::result() does

 private:
  double threshold_;
};

struct TopKOptions {
  std::int64_t k = 5;  // > 0
  std::string name = "top_k_accuracy";
};
// The part of rows whose label is among the k classes of the largest scores
// (tf.keras.metrics.SparseTopKCategoricalAccuracy). Equal scores at the border are all among
// them (tf.math.in_top_k).
class COHORT_API TopK : public Metric {
 public:
  TopK() : TopK(TopKOptions()) {}
  explicit TopK(const TopKOptions& options);
  // Labels: integers [rows] in [0, classes); predictions: floating-point [rows, classes], at least
  // k classes.
  void update(const LabeledRows& batch) const;
  double result() const;  // throws as Mean::result() does

 private:
  std::int64_t k_;
};

// The curve under which AUC computes the area: true over false positives, or precision over recall.
enum class AUCCurve : std::uint8_t { roc, precision_recall };
struct AUCOptions {
  std::string name = "auc";
  std::int64_t thresholds = 200;  // at least 2, evenly spaced in [0, 1], with both ends
  AUCCurve curve = AUCCurve::roc;
  bool from_logits = false;  // predictions go through a sigmoid first
};
// The area under a curve of binary predictions (tf.keras.metrics.AUC with summation_method
// interpolation), from histograms of the predictions between the thresholds: more thresholds bring
// it nearer to the exact area.
class COHORT_API AUC : public Metric {
 public:
  AUC() : AUC(AUCOptions()) {}
  explicit AUC(const AUCOptions& options);
  // Labels: [rows], bool, or numbers 0 and 1. Predictions: floating-point [rows] in [0, 1], or
  // logits.
  void update(const LabeledRows& batch) const;
  // Throws as Mean::result() does; failed_precondition without a positive row, and for the curve
  // roc without a negative one, where keras returns 0.
  double result() const;

 private:
  std::int64_t thresholds_;
  AUCCurve curve_;
  bool from_logits_;
};

struct ConfusionMatrixOptions {
  std::int64_t classes = 0;  // must be given, > 0
  std::string name = "confusion_matrix";
  bool is_weighted = false;  // sums of weights (float64) in place of numbers of rows (int64)
};
// How often each class was predicted for each label (tf.math.confusion_matrix). Each update writes
// all classes * classes numbers.
class COHORT_API ConfusionMatrix : public Metric {
 public:
  explicit ConfusionMatrix(const ConfusionMatrixOptions& options);
  // Labels: integers [rows] in [0, classes). Predictions: like them, or floating-point scores
  // [rows, classes], of which the largest is the class. Unless it is_weighted, weights are 0 or 1.
  void update(const LabeledRows& batch) const;
  // [classes, classes]: the row is the label, the column the prediction. Zeros before the first
  // row; throws as Mean::result() does otherwise.
  at::Tensor result() const;

 private:
  std::int64_t classes_;
  bool is_weighted_;
};

}  // namespace cohort::metrics
