// SPDX-License-Identifier: Apache-2.0
// Trains, evaluates and exports in all tasks of a cluster that run the same program
// (tf.estimator.train_and_evaluate).
//
//   const estimator::TrainSpec train{.input_fn = training_data, .max_steps = 1000};
//   const estimator::EvalSpec eval{.input_fn = test_data, .exporters = {best}};
//   estimator::train_and_evaluate(estimator, train, eval);
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cohort/core/clock.h"
#include "cohort/core/export.h"
#include "cohort/estimator/estimator.h"
#include "cohort/estimator/training_hook.h"
#include "cohort/train/early_stopping.h"

namespace cohort::estimator {

// Writes what an evaluation was about to "<model_dir>/export/<name>" (tf.estimator.Exporter).
class COHORT_API Exporter {
 public:
  // Throws invalid_argument for a name that is no name of a folder.
  explicit Exporter(std::string name);
  virtual ~Exporter() = default;
  Exporter(const Exporter&) = delete;
  Exporter& operator=(const Exporter&) = delete;
  const std::string& name() const { return name_; }

  struct Request {
    Estimator& estimator;
    const EvaluationResult& result;
    bool is_final = false;  // the training is known to have ended
  };
  // Called after each evaluation. `folder` is the exporter's own. Returns what it has written;
  // nullopt: nothing, and then it is called again, with is_final, if the training ends there.
  virtual std::optional<std::string> export_model(const std::string& folder,
                                                  const Request& request) = 0;

 private:
  std::string name_;
};

// The next three write Estimator::export_values(), and keep the newest few.
struct ExporterOptions {
  std::optional<std::int64_t> exports_to_keep = 5;  // > 0; nullopt: all
};

// Exports once, when the training has ended (tf.estimator.FinalExporter).
class COHORT_API FinalExporter final : public Exporter {
 public:
  explicit FinalExporter(std::string name) : Exporter(std::move(name)) {}
  std::optional<std::string> export_model(const std::string& folder,
                                          const Request& request) override;
};

// Exports after each evaluation (tf.estimator.LatestExporter).
class COHORT_API LatestExporter final : public Exporter {
 public:
  // Throws invalid_argument for options out of their range.
  explicit LatestExporter(std::string name, ExporterOptions options = {});
  std::optional<std::string> export_model(const std::string& folder,
                                          const Request& request) override;

 private:
  ExporterOptions options_;
};

// Exports if a metric is better than in all evaluations before, those of earlier starts among them:
// "<folder>/best.json" has the best value (tf.estimator.BestExporter, which reads summaries).
class COHORT_API BestExporter final : public Exporter {
 public:
  // tf's default is a small "loss". Throws invalid_argument for options out of their range.
  explicit BestExporter(std::string name, BestModelOptions best = {.monitor = "loss"},
                        ExporterOptions options = {});
  ~BestExporter() override;
  std::optional<std::string> export_model(const std::string& folder,
                                          const Request& request) override;

 private:
  BestModel best_;
  bool is_restored_ = false;
  std::int64_t evaluations_ = 0;  // not their steps, which a restored training repeats
  ExporterOptions options_;
};

// A value type.
struct TrainSpec {
  InputFunction input_fn = {};
  std::optional<std::int64_t> max_steps = {};  // of all starts together, > 0; not set: all data
  std::vector<std::shared_ptr<TrainingHook>> hooks = {};
  std::vector<std::shared_ptr<SavingListener>> saving_listeners = {};
};

// A value type.
struct EvalSpec {
  InputFunction input_fn = {};
  std::optional<std::int64_t> steps = 100;                // > 0; nullopt: to the end of the data
  std::string name = {};                                  // as EvaluateOptions::name
  std::vector<std::shared_ptr<Exporter>> exporters = {};  // of different names
  // An evaluator begins after start_delay. `throttle` is the least time from the start of one
  // evaluation to the next; the last checkpoint is evaluated all the same. Not negative.
  Duration start_delay = std::chrono::seconds(120);
  Duration throttle = std::chrono::seconds(600);
  // How long an evaluator waits for another checkpoint, > 0. For the first one it waits for
  // RunConfigOptions::session_creation_timeout.
  Duration checkpoint_timeout = std::chrono::hours(24);
};

// A value type.
struct TrainAndEvaluateResult {
  std::int64_t global_step = 0;               // of this task's training or last evaluation
  std::optional<EvaluationResult> last = {};  // nullopt: this task evaluates nothing
  std::vector<std::string> exports = {};      // of the last evaluation
};

// Plays the part of this task, as RunConfig has it, to the end of the training, and returns; then
// main() returns 0 in each task:
//
// - a process without a cluster, and a coordinator without an evaluator beside it: trains, and
//   evaluates each checkpoint but the first one, at most one per EvalSpec::throttle, and the last
//   one;
// - chief, worker: trains. Workers that wait for nobody begin after 5 s * (id + 1), at most after
//   RunConfig::max_worker_delay();
// - master: the chief, which evaluates as a process alone does;
// - evaluator: evaluates each new checkpoint, until it has evaluated that of the end;
// - ps, and a coordinator's worker: serves until a signal or the launcher ends it (Server::join()).
//
// A task that is started again goes on from the latest checkpoint. A training that was complete is
// evaluated again by the task that evaluates.
//
// Differs from tf: the end of a training is a file in model_dir, so that evaluators also end where
// the data ends or a hook stops before max_steps; max_steps need not be set; a coordinator is
// allowed, and CoordinatorMode::standalone_client is not.
//
// Throws invalid_argument for specs out of their range, for exporters of one name, for a task that
// has no part ("local", or an unknown type) and for an evaluator other than evaluator:0, for a
// chief or worker of several tasks without a strategy; unimplemented for a standalone client;
// failed_precondition inside another train_and_evaluate() of this thread, and where a training ends
// without a checkpoint, because RunConfig has turned them off; deadline_exceeded where an evaluator
// gets no new checkpoint; and what train(), evaluate(), exporters and Server throw.
COHORT_API TrainAndEvaluateResult train_and_evaluate(Estimator& estimator, const TrainSpec& train,
                                                     const EvalSpec& eval);

}  // namespace cohort::estimator
