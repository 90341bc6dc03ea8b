// SPDX-License-Identifier: Apache-2.0
// A model on a strategy, and the checkpoint whose values it has.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "cohort/checkpoint/checkpoint.h"
#include "cohort/estimator/estimator.h"
#include "cohort/strategy/strategy.h"

namespace cohort::estimator {

// Thread-compatible.
class Model {
 public:
  // Calls the function in the scope of the strategy. Throws what it throws.
  Model(const ModelFunction& make, Strategy& strategy, ModeKeys mode, const RunConfig& config);

  const EstimatorSpec& spec() const { return spec_; }
  Strategy& strategy() const { return strategy_; }
  const Checkpoint& checkpoint() const { return checkpoint_; }

  // Restores the checkpoint of this folder, unless the model has its values, and returns its step.
  // LibTorch's random numbers stay as they are. Throws failed_precondition while a training uses
  // other values.
  std::int64_t restore(const std::string& path);
  // Throws not_found if a restore with allow_missing has not found something else than metrics.
  void check_restored(const Restored& restored) const;
  // The model has the values of this checkpoint until its next step.
  void set_restored(std::string path, std::int64_t step);
  void note_step() { path_.clear(); }
  const std::string& path() const { return path_; }

  // A training uses the model while the result exists.
  [[nodiscard]] std::shared_ptr<void> begin_training();

  // The variables of the model alone, by the names of Estimator::export_values().
  std::map<std::string, Variable> exported() const;

 private:
  std::vector<std::string> metric_names() const;

  Strategy& strategy_;
  EstimatorSpec spec_;
  Checkpoint checkpoint_;
  std::string path_;  // of the checkpoint whose values it has; empty: others
  std::int64_t step_ = 0;
  bool is_training_ = false;
};

}  // namespace cohort::estimator
