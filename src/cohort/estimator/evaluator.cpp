// SPDX-License-Identifier: Apache-2.0
#include "cohort/estimator/evaluator.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "cohort/core/atomic_file.h"
#include "cohort/core/error.h"
#include "cohort/core/log.h"
#include "cohort/core/mutex.h"

namespace cohort::estimator {
namespace {

using Json = nlohmann::json;
namespace fs = std::filesystem;

std::string path_of_end(const std::string& model_dir) { return model_dir + "/training_end.json"; }

}  // namespace

Evaluator::Evaluator(Estimator& estimator, const EvalSpec& spec)
    : estimator_(estimator), spec_(spec) {}

void Evaluator::evaluate(const std::string& checkpoint, bool is_final) {
  last_ = estimator_.evaluate(
      spec_.input_fn, {.steps = spec_.steps, .checkpoint_path = checkpoint, .name = spec_.name});
  std::string values;
  for (const auto& [name, value] : last_->values)
    values += ", " + name + " = " + std::to_string(value);
  log_info("[estimator.evaluate] step ", last_->global_step, values);
  exported_.clear();
  export_all(is_final);
}

void Evaluator::export_finally() {
  if (last_) export_all(true);
}

void Evaluator::export_all(bool is_final) {
  exported_.resize(spec_.exporters.size());
  for (std::size_t i = 0; i < exported_.size(); ++i) {
    if (exported_[i]) continue;
    Exporter& exporter = *spec_.exporters[i];
    exported_[i] =
        exporter.export_model(estimator_.model_dir() + "/export/" + exporter.name(),
                              {.estimator = estimator_, .result = *last_, .is_final = is_final});
  }
}

std::vector<std::string> Evaluator::exports() const {
  std::vector<std::string> all;
  for (const auto& path : exported_)
    if (path) all.push_back(*path);
  return all;
}

void write_training_end(const std::string& model_dir, const TrainingEnd& end) {
  const Json max_steps = end.max_steps ? Json(*end.max_steps) : Json(nullptr);
  const std::string text =
      Json{{"global_step", end.global_step}, {"max_steps", max_steps}}.dump() + "\n";
  write_atomically(path_of_end(model_dir), text, "estimator.train_and_evaluate");
}

void remove_training_end(const std::string& model_dir) {
  std::error_code ignored;  // it need not be there
  fs::remove(path_of_end(model_dir), ignored);
}

std::optional<TrainingEnd> read_training_end(const std::string& model_dir,
                                             std::optional<std::int64_t> max_steps) {
  std::ifstream file(path_of_end(model_dir), std::ios::binary);
  const Json json = Json::parse(file, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.value("global_step", Json()).is_number_integer())
    return std::nullopt;
  TrainingEnd end{.global_step = json.at("global_step").get<std::int64_t>()};
  const Json of_training = json.value("max_steps", Json());
  if (of_training.is_number_integer()) end.max_steps = of_training.get<std::int64_t>();
  return end.max_steps == max_steps ? std::optional(end) : std::nullopt;
}

EvaluationListener::EvaluationListener(Evaluator& evaluator, const Estimator& estimator,
                                       const EvalSpec& spec)
    : evaluator_(evaluator), estimator_(estimator), spec_(spec) {}

void EvaluationListener::begin() { is_first_ = !estimator_.latest_checkpoint().has_value(); }

bool EvaluationListener::after_save(std::int64_t global_step) {
  if (std::exchange(is_first_, false)) return false;
  const TimePoint now = estimator_.config().clock().now();
  if (evaluated_step_ >= 0 && now < evaluated_time_ + spec_.throttle) return false;
  evaluated_time_ = now;
  evaluate(global_step, false);
  return false;
}

void EvaluationListener::end(std::int64_t global_step) {
  if (global_step == evaluated_step_) return evaluator_.export_finally();
  evaluate(global_step, true);
}

void EvaluationListener::evaluate(std::int64_t global_step, bool is_final) {
  const std::optional<std::string> latest = estimator_.latest_checkpoint();
  if (latest) evaluator_.evaluate(*latest, is_final);
  COHORT_CHECK(latest && evaluator_.last()->global_step == global_step,
               ErrorCode::failed_precondition,
               "[estimator.train_and_evaluate] expected a checkpoint of step ", global_step,
               " after the training, got ",
               latest ? "that of step " + std::to_string(evaluator_.last()->global_step) : "none",
               "; set RunConfigOptions::save_checkpoints_steps or save_checkpoints_interval above "
               "0");
  evaluated_step_ = global_step;
}

void wait_for(Clock& clock, Duration duration) {
  Mutex mutex;
  Condition never;
  const Lock lock(mutex);
  never.wait(
      mutex, Deadline::after(duration, clock), [] { return false; }, clock);
}

namespace {

// The state of one evaluator task.
class ContinuousEvaluation {
 public:
  ContinuousEvaluation(Estimator& estimator, Evaluator& evaluator, const TrainSpec& train,
                       const EvalSpec& eval)
      : estimator_(estimator),
        evaluator_(evaluator),
        train_(train),
        eval_(eval),
        clock_(estimator.config().clock()) {}

  void run() {
    wait_for(clock_, eval_.start_delay);
    changed_ = clock_.now();
    while (!evaluate_if_due()) {
      check_deadline();
      wait_for(clock_, std::clamp<Duration>(eval_.throttle, std::chrono::seconds(1),
                                            std::chrono::seconds(5)));
    }
  }

 private:
  // Returns whether the training has ended and its last checkpoint was evaluated.
  bool evaluate_if_due() {
    const auto end = read_training_end(estimator_.model_dir(), train_.max_steps);
    const std::optional<std::string> latest = estimator_.latest_checkpoint();
    if (!latest || latest == previous_) {
      if (end && has_reached(end->global_step)) return finish();
      warn(latest.has_value());
      return false;
    }
    const TimePoint now = clock_.now();
    const bool is_throttled = !previous_.empty() && now < started_ + eval_.throttle;
    if (is_throttled && !end) return false;
    started_ = changed_ = now;
    if (!evaluate(*latest)) return false;
    const std::int64_t last = end ? end->global_step : train_.max_steps.value_or(INT64_MAX);
    return has_reached(std::min(last, train_.max_steps.value_or(INT64_MAX))) && finish();
  }

  // False if the training has removed the checkpoint, since newer ones have come.
  bool evaluate(const std::string& checkpoint) {
    try {
      evaluator_.evaluate(checkpoint, false);
    } catch (const Error&) {
      if (fs::exists(checkpoint)) throw;
      log_warn("[estimator.train_and_evaluate] checkpoint '", checkpoint,
               "' was removed before it was read; raise RunConfigOptions::keep_checkpoint_max");
      return false;
    }
    previous_ = checkpoint;
    warned_.reset();
    return true;
  }

  bool has_reached(std::int64_t step) const {
    return evaluator_.last() && evaluator_.last()->global_step >= step;
  }
  bool finish() {
    evaluator_.export_finally();
    return true;
  }

  // At most every ten minutes, as tf.
  void warn(bool has_checkpoint) {
    const TimePoint now = clock_.now();
    if (warned_ && now < *warned_ + std::chrono::seconds(600)) return;
    warned_ = now;
    log_warn("[estimator.train_and_evaluate] waits for ",
             has_checkpoint ? "a new checkpoint" : "the first checkpoint", " in '",
             estimator_.model_dir(), "'");
  }

  void check_deadline() const {
    const Duration patience = previous_.empty()
                                  ? estimator_.config().options().session_creation_timeout
                                  : eval_.checkpoint_timeout;
    COHORT_CHECK(clock_.now() < changed_ + patience, ErrorCode::deadline_exceeded,
                 "[estimator.train_and_evaluate] expected a new checkpoint in '",
                 estimator_.model_dir(), "' within ",
                 std::chrono::duration<double>(patience).count(), " s, got ",
                 previous_.empty() ? "none" : "none after '" + previous_ + "'",
                 "; start the tasks that train, or raise ",
                 previous_.empty() ? "RunConfigOptions::session_creation_timeout"
                                   : "EvalSpec::checkpoint_timeout");
  }

  Estimator& estimator_;
  Evaluator& evaluator_;
  const TrainSpec& train_;
  const EvalSpec& eval_;
  Clock& clock_;
  std::string previous_;  // the checkpoint that was evaluated last
  TimePoint started_;     // of the last evaluation
  TimePoint changed_;     // when there was a new checkpoint
  std::optional<TimePoint> warned_;
};

}  // namespace

void evaluate_continuously(Estimator& estimator, Evaluator& evaluator, const TrainSpec& train,
                           const EvalSpec& eval) {
  ContinuousEvaluation(estimator, evaluator, train, eval).run();
}

}  // namespace cohort::estimator
