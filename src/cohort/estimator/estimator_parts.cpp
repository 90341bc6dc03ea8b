// SPDX-License-Identifier: Apache-2.0
#include "cohort/estimator/estimator_parts.h"

#include <filesystem>
#include <system_error>
#include <utility>

#include "cohort/checkpoint_files/inspection.h"
#include "cohort/core/error.h"
#include "cohort/core/system_error.h"
#include "cohort/estimator/strategy_kind.h"
#include "cohort/estimator/training/training_run.h"
#include "cohort/train/evaluation.h"
#include "cohort/variable/saved_values.h"

namespace cohort::estimator {
namespace {

namespace fs = std::filesystem;

void check_positive(const char* call, const char* option, std::optional<std::int64_t> value) {
  COHORT_CHECK(value.value_or(1) > 0, ErrorCode::invalid_argument, "[estimator.", call,
               "] expected ", option, " > 0, got ", value.value_or(1));
}

void check_input(const char* call, const InputFunction& input) {
  COHORT_CHECK(static_cast<bool>(input), ErrorCode::invalid_argument, "[estimator.", call,
               "] expected an input function, got an empty one");
}

template <class F>
void check_step(const char* call, const char* step, const std::function<F>& given) {
  COHORT_CHECK(given != nullptr, ErrorCode::invalid_argument, "[estimator.", call,
               "] expected the model function to return ", step,
               ", got none; set EstimatorSpec::", step);
}

}  // namespace

EstimatorParts::EstimatorParts(ModelFunction model_fn, RunConfig config)
    : model_fn_(std::move(model_fn)), config_(std::move(config)) {
  COHORT_CHECK(model_fn_ != nullptr, ErrorCode::invalid_argument,
               "[estimator.estimator] expected a model function, got an empty one");
}

Strategy& EstimatorParts::train_strategy() {
  if (config_.train_distribute() != nullptr) return *config_.train_distribute();
  if (!own_train_) own_train_ = std::make_unique<OneDeviceStrategy>();
  return *own_train_;
}

// Workers that train together cannot evaluate one by one, and the workers of a coordinator go on
// training meanwhile.
Strategy& EstimatorParts::evaluation_strategy() {
  if (Strategy* const given = config_.eval_distribute()) {
    COHORT_CHECK(dynamic_cast<SynchronousStrategy*>(given) != nullptr, ErrorCode::invalid_argument,
                 "[estimator.evaluate] expected a synchronous strategy as eval_distribute, got ",
                 given->name(), "; use OneDeviceStrategy or MirroredStrategy");
    return *given;
  }
  Strategy& trains = train_strategy();
  if (kind_of(trains) == StrategyKind::alone) return trains;
  if (!own_eval_) own_eval_ = std::make_unique<OneDeviceStrategy>();
  return *own_eval_;
}

// A model that was made for evaluation alone would have the same names.
Model& EstimatorParts::training_model() {
  if (training_) return *training_;
  if (evaluation_ && &evaluation_->strategy() == &train_strategy()) evaluation_.reset();
  training_ = std::make_unique<Model>(model_fn_, train_strategy(), ModeKeys::train, config_);
  check_step("train", "train_step", training_->spec().train_step);
  return *training_;
}

Model& EstimatorParts::evaluation_model() {
  Strategy& strategy = evaluation_strategy();
  if (training_ && &training_->strategy() == &strategy) return *training_;
  if (!evaluation_)
    evaluation_ = std::make_unique<Model>(model_fn_, strategy, ModeKeys::eval, config_);
  return *evaluation_;
}

std::int64_t EstimatorParts::train(const InputFunction& input, const TrainOptions& options) {
  check_input("train", input);
  check_positive("train", "steps", options.steps);
  check_positive("train", "max_steps", options.max_steps);
  COHORT_CHECK(!options.steps || !options.max_steps, ErrorCode::invalid_argument,
               "[estimator.train] expected steps or max_steps, got both: ", *options.steps, " and ",
               *options.max_steps, "; leave one out");
  Model& model = training_model();
  const std::shared_ptr<void> training = model.begin_training();
  return TrainingRun(model, config_, input, options).run();
}

EvaluationResult EstimatorParts::restore(Model& model, const std::string& checkpoint,
                                         const char* call) {
  EvaluationResult result;
  result.checkpoint = checkpoint.empty() ? existing_checkpoint(call) : checkpoint;
  result.global_step = model.restore(result.checkpoint);
  return result;
}

DistributedDataset EstimatorParts::distributed(Strategy& strategy, const InputFunction& input,
                                               std::optional<std::int64_t> steps) {
  return strategy.distribute_datasets_from_function([&](const InputContext& context) {
    const Dataset all = input(context);
    if (!steps) return all;
    return all.take(*steps * (context.num_replicas_in_sync / context.num_input_pipelines));
  });
}

EvaluationResult EstimatorParts::evaluate(const InputFunction& input,
                                          const EvaluateOptions& options) {
  check_input("evaluate", input);
  check_positive("evaluate", "steps", options.steps);
  Model& model = evaluation_model();
  const EstimatorSpec& spec = model.spec();
  check_step("evaluate", "eval_step", spec.eval_step);
  COHORT_CHECK(!spec.eval_metrics.empty(), ErrorCode::invalid_argument,
               "[estimator.evaluate] expected the model function to return eval_metrics, got none; "
               "set EstimatorSpec::eval_metrics");
  EvaluationResult result = restore(model, options.checkpoint_path, "evaluate");
  std::vector<metrics::Metric> metrics;
  for (const EvalMetric& each : spec.eval_metrics) metrics.push_back(each.metric());
  const Evaluation evaluation(model.strategy(), spec.eval_step,
                              distributed(model.strategy(), input, options.steps),
                              {.metrics = std::move(metrics), .is_traced = spec.is_traced});
  evaluation.run();
  for (const EvalMetric& each : spec.eval_metrics) result.values[each.name()] = each.result();
  write_summaries(result, options.name);
  return result;
}

void EstimatorParts::write_summaries(const EvaluationResult& result, const std::string& name) {
  const std::string folder = config_.model_dir() + (name.empty() ? "/eval" : "/eval_" + name);
  std::unique_ptr<SummaryWriter>& writer = summaries_[folder];
  if (!writer) writer = std::make_unique<SummaryWriter>(folder);
  for (const auto& [metric, value] : result.values)
    writer->scalar(metric, value, result.global_step);
  writer->flush();
}

void EstimatorParts::predict(const InputFunction& input,
                             const std::function<void(const Nest&)>& take,
                             const PredictOptions& options) {
  check_input("predict", input);
  COHORT_CHECK(take != nullptr, ErrorCode::invalid_argument,
               "[estimator.predict] expected a function that takes the predictions, got an empty "
               "one");
  Model& model = evaluation_model();
  check_step("predict", "predict_step", model.spec().predict_step);
  restore(model, options.checkpoint_path, "predict");
  const internal::EvaluationStep step(model.spec().predict_step);
  DistributedIterator elements = distributed(model.strategy(), input, {}).iterator();
  while (true) {
    const DistributedOptional element = elements.get_next_as_optional();
    if (!element.has_value()) return;
    const PerReplica<Nest> results = model.strategy().run(step, element.get_value());
    for (const Nest& each : model.strategy().local_results(results)) take(each);
  }
}

std::string EstimatorParts::export_values(const std::string& base, const std::string& checkpoint) {
  COHORT_CHECK(!base.empty(), ErrorCode::invalid_argument,
               "[estimator.export_values] expected the path of a folder, got an empty one");
  Model& model = evaluation_model();
  const EvaluationResult restored = restore(model, checkpoint, "export_values");
  const std::string folder = base + "/" + std::to_string(restored.global_step);
  std::error_code error;
  fs::create_directories(folder, error);
  COHORT_CHECK(!error, code_of_file_errno(error.value()),
               "[estimator.export_values] expected to make folder '", folder,
               "', got: ", error.message());
  save_values(folder + "/values.safetensors", model.exported());
  return folder;
}

std::string EstimatorParts::existing_checkpoint(const char* call) const {
  std::optional<std::string> path = latest_checkpoint();
  COHORT_CHECK(path.has_value(), ErrorCode::not_found, "[estimator.", call,
               "] expected a checkpoint in model_dir '", config_.model_dir(),
               "', got none; call train() first");
  return *std::move(path);
}

std::optional<std::string> EstimatorParts::latest_checkpoint() const {
  if (!fs::is_directory(config_.model_dir())) return std::nullopt;
  const std::vector<std::string> all = checkpoint::checkpoints_in(config_.model_dir());
  if (all.empty()) return std::nullopt;
  return checkpoint::latest_of(config_.model_dir());
}

}  // namespace cohort::estimator
