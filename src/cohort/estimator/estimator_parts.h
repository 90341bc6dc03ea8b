// SPDX-License-Identifier: Apache-2.0
// The models of an Estimator and the strategies on which they are.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "cohort/estimator/estimator.h"
#include "cohort/estimator/model.h"
#include "cohort/strategy/synchronous_strategy.h"
#include "cohort/train/summary_writer.h"

namespace cohort::estimator {

// Thread-compatible.
class EstimatorParts {
 public:
  EstimatorParts(ModelFunction model_fn, RunConfig config);

  const RunConfig& config() const { return config_; }
  Strategy& train_strategy();
  // Estimator::train() without its check of the cluster.
  std::int64_t train(const InputFunction& input, const TrainOptions& options);
  EvaluationResult evaluate(const InputFunction& input, const EvaluateOptions& options);
  void predict(const InputFunction& input, const std::function<void(const Nest&)>& take,
               const PredictOptions& options);
  std::string export_values(const std::string& base, const std::string& checkpoint);
  std::optional<std::string> latest_checkpoint() const;
  // latest_checkpoint(); not_found if there is none. `call`: for the message.
  std::string existing_checkpoint(const char* call) const;

 private:
  Model& training_model();
  // The one that trains, if that evaluates too.
  Model& evaluation_model();
  Strategy& evaluation_strategy();
  // Restores it, and returns the path and the step.
  EvaluationResult restore(Model& model, const std::string& checkpoint, const char* call);
  void write_summaries(const EvaluationResult& result, const std::string& name);
  // The data of an evaluation, of at most so many steps.
  DistributedDataset distributed(Strategy& strategy, const InputFunction& input,
                                 std::optional<std::int64_t> steps);

  const ModelFunction model_fn_;
  const RunConfig config_;
  std::unique_ptr<OneDeviceStrategy> own_train_, own_eval_;  // where RunConfig names none
  std::unique_ptr<Model> training_, evaluation_;
  std::map<std::string, std::unique_ptr<SummaryWriter>> summaries_;  // by folder
};

}  // namespace cohort::estimator
