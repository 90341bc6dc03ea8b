// SPDX-License-Identifier: Apache-2.0
#include "cohort/estimator/model.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/TensorBody.h>

#include <algorithm>
#include <mutex>
#include <utility>

#include "cohort/core/error.h"
#include "cohort/strategy/strategy_access.h"
#include "cohort/strategy/strategy_parts.h"

namespace cohort::estimator {
namespace {

// Puts LibTorch's default generator back as it was.
class KeptRandomNumbers {
 public:
  KeptRandomNumbers() : generator_(at::detail::getDefaultCPUGenerator()) {
    const std::lock_guard<std::mutex> lock(generator_.mutex());
    state_ = generator_.get_state();
  }
  ~KeptRandomNumbers() {
    const std::lock_guard<std::mutex> lock(generator_.mutex());
    generator_.set_state(state_);
  }
  KeptRandomNumbers(const KeptRandomNumbers&) = delete;
  KeptRandomNumbers& operator=(const KeptRandomNumbers&) = delete;

 private:
  at::Generator generator_;
  at::Tensor state_;
};

void seed_random_numbers(std::uint64_t seed) {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const std::lock_guard<std::mutex> lock(generator.mutex());
  generator.set_current_seed(seed);
}

EstimatorSpec made(const ModelFunction& make, const ModelContext& context) {
  if (context.mode == ModeKeys::train && context.config.options().random_seed)
    seed_random_numbers(*context.config.options().random_seed);
  const StrategyScope scope = context.strategy.scope();
  return make(context);
}

}  // namespace

Model::Model(const ModelFunction& make, Strategy& strategy, ModeKeys mode, const RunConfig& config)
    : strategy_(strategy),
      spec_(made(make, {.mode = mode, .strategy = strategy, .config = config})),
      checkpoint_(strategy) {}

std::int64_t Model::restore(const std::string& path) {
  if (path == path_) return step_;
  COHORT_CHECK(!is_training_, ErrorCode::failed_precondition,
               "[estimator.evaluate] expected, while the model is trained, the checkpoint that was "
               "just saved, got '",
               path, "'; set RunConfigOptions::eval_distribute to another strategy");
  const KeptRandomNumbers random_numbers;
  path_.clear();
  const Restored restored = checkpoint_.read(path, {.allow_missing = true});
  check_restored(restored);
  set_restored(path, restored.step);
  return step_;
}

void Model::check_restored(const Restored& restored) const {
  const std::vector<std::string> metrics = metric_names();
  for (const std::string& name : restored.missing)
    COHORT_CHECK(std::count(metrics.begin(), metrics.end(), name) > 0, ErrorCode::not_found,
                 "[estimator.restore] expected all values of the model in checkpoint '",
                 restored.path, "', got none of '", name,
                 "'; give the changed model another model_dir, or list the metric in "
                 "EstimatorSpec::eval_metrics");
}

void Model::set_restored(std::string path, std::int64_t step) {
  path_ = std::move(path);
  step_ = step;
}

std::shared_ptr<void> Model::begin_training() {
  is_training_ = true;
  return {this, [](Model* model) { model->is_training_ = false; }};
}

std::vector<std::string> Model::metric_names() const {
  std::vector<std::string> names;
  for (const EvalMetric& each : spec_.eval_metrics)
    for (const Variable& variable : each.metric().variables()) names.push_back(variable.name());
  return names;
}

std::map<std::string, Variable> Model::exported() const {
  const std::vector<std::string> metrics = metric_names();
  std::vector<Variable> own;
  for (const Variable& each : internal::StrategyAccess::variables(strategy_)->all())
    if (std::count(metrics.begin(), metrics.end(), each.name()) == 0) own.push_back(each);
  COHORT_CHECK(!own.empty(), ErrorCode::invalid_argument,
               "[estimator.export] expected a model with variables, got none");
  const std::string& first = own.front().name();
  std::string prefix = first.substr(0, first.find('/') + 1);
  for (const Variable& each : own)
    if (!each.name().starts_with(prefix)) prefix.clear();
  std::map<std::string, Variable> named;
  for (const Variable& each : own) named.emplace(each.name().substr(prefix.size()), each);
  return named;
}

}  // namespace cohort::estimator
