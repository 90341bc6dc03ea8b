// SPDX-License-Identifier: Apache-2.0
// A model with the loop around it: trains from the latest checkpoint on, saves, evaluates and
// exports (tf.estimator.Estimator). train_and_evaluate.h runs it in all tasks of a cluster.
//
//   estimator::EstimatorSpec model_fn(const estimator::ModelContext& context) {
//     const auto net = context.strategy.replicate([] { return torch::nn::Linear(4, 3); });
//     const Adam adam(net.parameters());
//     const metrics::Accuracy accuracy;
//     return {.train_step = [=](const Nest& batch) {
//               const at::Tensor x = batch.items()[0].tensor(), y = batch.items()[1].tensor();
//               const at::Tensor losses =
//                   torch::cross_entropy_loss(net->forward(x), y, {}, at::Reduction::None);
//               const at::Tensor loss = average_loss(losses);
//               adam.minimize(loss);
//               return loss;
//             },
//             .eval_step = [=](const Nest& batch) {
//               accuracy.update({.labels = batch.items()[1].tensor(),
//                                .predictions = net->forward(batch.items()[0].tensor())});
//             },
//             .eval_metrics = {accuracy}};
//   }
//
// Then, with functions that return datasets:
//
//   estimator::Estimator estimator(model_fn, estimator::RunConfig({.model_dir = "model"}));
//   estimator.train(training_data, {.max_steps = 1000});
//   std::printf("%f\n", estimator.evaluate(test_data).values.at("accuracy"));
#pragma once

#include <ATen/core/Tensor.h>

#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "cohort/core/export.h"
#include "cohort/core/nest.h"
#include "cohort/data/dataset.h"
#include "cohort/data/dataset_options.h"
#include "cohort/estimator/run_config.h"
#include "cohort/estimator/training_hook.h"
#include "cohort/metrics/metrics.h"
#include "cohort/train/early_stopping.h"

namespace cohort::estimator {

class EstimatorParts;  // estimator/estimator_parts.h

// The purpose for which a model is made (tf.estimator.ModeKeys). PREDICT is a part of eval.
enum class ModeKeys : std::uint8_t {
  train,  // training, and evaluation where it is of the same values
  eval,   // evaluation and prediction alone: no optimizer is needed
};

// A metric with the name and the number that Estimator::evaluate() reports
// (tf's eval_metric_ops). A value type.
class COHORT_API EvalMetric {
 public:
  // A metric whose result is a number, under its own name.
  template <class M>
  requires(std::derived_from<M, metrics::Metric>&& requires(const M& metric) {
    { metric.result() } -> std::convertible_to<double>;
  }) EvalMetric(M metric)  // NOLINT: a list of metrics is the point
      : EvalMetric(metric, metric.name(), [metric] { return metric.result(); }) {}
  // A number that `result` computes from the metric.
  EvalMetric(metrics::Metric metric, std::string name, std::function<double()> result)
      : metric_(std::move(metric)), name_(std::move(name)), result_(std::move(result)) {}

  const metrics::Metric& metric() const { return metric_; }
  const std::string& name() const { return name_; }
  double result() const { return result_(); }

 private:
  metrics::Metric metric_;
  std::string name_;
  std::function<double()> result_;
};

// The result of a model function (tf.estimator.EstimatorSpec): not operators but steps, each of
// which takes an element of the input function. A step holds what it uses, so capture modules,
// optimizers and metrics by value. A value type.
struct EstimatorSpec {
  // Runs in each replica, or on a worker of a coordinator, and updates the model. Returns its part
  // of the loss, one number, such as average_loss(): the parts are summed for reports.
  std::function<at::Tensor(const Nest& element)> train_step = {};
  // Runs in each replica without gradients, with modules in eval mode, and updates metrics.
  std::function<void(const Nest& element)> eval_step = {};
  // Runs like eval_step, and returns the predictions for the element.
  std::function<Nest(const Nest& element)> predict_step = {};
  // Are reset before each evaluation and reported after it. A model that is only evaluated needs
  // these values in no checkpoint.
  std::vector<EvalMetric> eval_metrics = {};
  // They come before those of train().
  std::vector<std::shared_ptr<TrainingHook>> training_hooks = {};
  // Whether the steps run as those of Strategy::function(), which is faster. A coordinator always
  // traces steps.
  bool is_traced = false;
};

struct ModelContext {
  ModeKeys mode;
  Strategy& strategy;  // whose scope is open
  const RunConfig& config;
};
// Makes the model: its modules or variables and its optimizer, once for each strategy. It is called
// on the caller's thread of train(), evaluate(), … in the scope of the strategy.
using ModelFunction = std::function<EstimatorSpec(const ModelContext& context)>;

// Makes the data (tf's input_fn): batches for one replica, of which each step takes one a replica.
// It is called once for each input pipeline, so shard() by the context; without the context, all
// pipelines have the same data. A value type.
class InputFunction {
 public:
  InputFunction() = default;
  template <class F>
  // NOLINTNEXTLINE(google-explicit-constructor): it is the function
  requires std::is_invocable_r_v<Dataset, const F&, const InputContext&> InputFunction(F make)
      : make_(std::move(make)) {}
  template <class F>
  requires std::is_invocable_r_v<Dataset, const F&> InputFunction(F make)  // NOLINT
      : make_([make = std::move(make)](const InputContext&) { return make(); }) {}

  Dataset operator()(const InputContext& context) const { return make_(context); }
  explicit operator bool() const { return static_cast<bool>(make_); }

 private:
  std::function<Dataset(const InputContext&)> make_;
};

// Ends at the first of these and at the end of the data.
struct TrainOptions {
  std::optional<std::int64_t> steps = {};      // so many more than there were; > 0
  std::optional<std::int64_t> max_steps = {};  // so many in all; > 0. Only one may be set
  std::vector<std::shared_ptr<TrainingHook>> hooks = {};
  std::vector<std::shared_ptr<SavingListener>> saving_listeners = {};
};

struct EvaluateOptions {
  std::optional<std::int64_t> steps = {};  // > 0; not set: to the end of the data
  std::string checkpoint_path = {};        // empty: the latest of model_dir
  // Summaries are in the folder "<model_dir>/eval_<name>"; empty: in "<model_dir>/eval".
  std::string name = {};
};
// A value type.
struct EvaluationResult {
  MetricValues values = {};      // of EstimatorSpec::eval_metrics, by name
  std::int64_t global_step = 0;  // of the checkpoint
  std::string checkpoint = {};   // its folder
};

struct PredictOptions {
  std::string checkpoint_path = {};  // empty: the latest of model_dir
};

// Thread-compatible. Many methods because it has those of tf.estimator.Estimator.
//
// Variables live as long as the Estimator, and no other model may have their names on its
// strategies. Evaluation is on eval_distribute, if that is set; on the strategy that trains, if it
// is one of this process alone, and then uses the values that it has; else on a OneDeviceStrategy.
class COHORT_API Estimator {
 public:
  // Throws invalid_argument for an empty function.
  explicit Estimator(ModelFunction model_fn, RunConfig config = RunConfig());
  ~Estimator();
  Estimator(Estimator&&) noexcept;
  Estimator& operator=(Estimator&&) noexcept;

  // Restores the latest checkpoint of model_dir, if there is one, and trains. Saves a checkpoint at
  // the start if there was none, then as RunConfig says, and at the end. Returns the global step.
  // The data begins at its start in each call.
  //
  // On a coordinator (ParameterServerStrategy), the data is read by the workers. If it has no end,
  // checkpoints are of the step that they name; in an epoch over data that ends, they may have the
  // updates of a few more steps that were running.
  //
  // Throws invalid_argument for options out of their range, for a model without train_step, and in
  // a task of a cluster, whose tasks train by train_and_evaluate(); not_found for a checkpoint
  // without a variable of the model; what the model, the data, hooks and the strategy throw.
  std::int64_t train(const InputFunction& input_fn, const TrainOptions& options = {});

  // Restores the checkpoint, runs eval_step over the data, writes the values as summaries, and
  // returns them. Throws not_found without a checkpoint (tf evaluates initial values then);
  // invalid_argument for a model without eval_step or eval_metrics; failed_precondition in a hook
  // for another checkpoint than the one that was just saved, if the strategy that trains evaluates.
  EvaluationResult evaluate(const InputFunction& input_fn, const EvaluateOptions& options = {});

  // Restores the checkpoint, runs predict_step over the data, and calls `take` with the result of
  // each replica, in order, on this thread. Throws as evaluate() does.
  void predict(const InputFunction& input_fn,
               const std::function<void(const Nest& predictions)>& take,
               const PredictOptions& options = {});

  // Writes the variables of the model, without metrics and slots, to
  // "<base>/<global step>/values.safetensors", and returns that folder (tf's export_saved_model,
  // which writes the graph too). Names are without "<model>/" if the model has one module.
  // restore_values() and Python's safetensors read it. Throws as evaluate() does, and the errors of
  // the file system.
  std::string export_values(const std::string& base, const std::string& checkpoint_path = {});

  // The folder of the latest complete checkpoint in model_dir; nullopt: there is none.
  std::optional<std::string> latest_checkpoint() const;
  // The tensors of the latest checkpoint, slots of optimizers among them, sorted by name, and the
  // value of one of them. Both throw not_found without a checkpoint; the second one for another
  // name, too.
  std::vector<std::string> get_variable_names() const;
  at::Tensor get_variable_value(const std::string& name) const;
  const RunConfig& config() const;
  const std::string& model_dir() const { return config().model_dir(); }

  // For train_and_evaluate().
  EstimatorParts& parts() { return *parts_; }

 private:
  std::unique_ptr<EstimatorParts> parts_;
};

}  // namespace cohort::estimator
