// SPDX-License-Identifier: Apache-2.0
// Evaluates the checkpoints of a training, and exports what was evaluated (tf's _Evaluator).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cohort/core/clock.h"
#include "cohort/estimator/train_and_evaluate.h"

namespace cohort::estimator {

// Used only from one thread.
class Evaluator {
 public:
  // All of them outlive it.
  Evaluator(Estimator& estimator, const EvalSpec& spec);

  // Evaluates this checkpoint and calls the exporters. `is_final`: the training has ended.
  void evaluate(const std::string& checkpoint, bool is_final);
  // The training has ended: calls the exporters that have written nothing of the last evaluation.
  void export_finally();

  const std::optional<EvaluationResult>& last() const { return last_; }
  std::vector<std::string> exports() const;  // of the last evaluation

 private:
  void export_all(bool is_final);

  Estimator& estimator_;
  const EvalSpec& spec_;
  std::optional<EvaluationResult> last_;
  // The paths that each exporter has returned for the last evaluation.
  std::vector<std::optional<std::string>> exported_;
};

// Where a training has ended: a file in model_dir, by which an evaluator knows the last checkpoint.
struct TrainingEnd {
  std::int64_t global_step = 0;
  std::optional<std::int64_t> max_steps = {};  // that the training had
};
void write_training_end(const std::string& model_dir, const TrainingEnd& end);
void remove_training_end(const std::string& model_dir);
// nullopt: the training has not ended, or had another number of steps.
std::optional<TrainingEnd> read_training_end(const std::string& model_dir,
                                             std::optional<std::int64_t> max_steps);

// Evaluates after the checkpoints of a training in this process (tf's
// _NewCheckpointListenerForEvaluate).
class EvaluationListener final : public SavingListener {
 public:
  EvaluationListener(Evaluator& evaluator, const Estimator& estimator, const EvalSpec& spec);
  void begin() override;
  bool after_save(std::int64_t global_step) override;
  void end(std::int64_t global_step) override;

 private:
  void evaluate(std::int64_t global_step, bool is_final);

  Evaluator& evaluator_;
  const Estimator& estimator_;
  const EvalSpec& spec_;
  bool is_first_ = true;              // the next checkpoint is that before the first step
  std::int64_t evaluated_step_ = -1;  // -1: none
  TimePoint evaluated_time_;
};

// Waits for checkpoints and evaluates them until the training has ended. Throws deadline_exceeded
// if no new one comes.
void evaluate_continuously(Estimator& estimator, Evaluator& evaluator, const TrainSpec& train,
                           const EvalSpec& eval);

void wait_for(Clock& clock, Duration duration);

}  // namespace cohort::estimator
