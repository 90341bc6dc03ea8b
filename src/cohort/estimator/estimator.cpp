// SPDX-License-Identifier: Apache-2.0
#include "cohort/estimator/estimator.h"

#include <ATen/core/TensorBody.h>

#include <algorithm>
#include <utility>

#include "cohort/checkpoint_files/folder_reader.h"
#include "cohort/checkpoint_files/inspection.h"
#include "cohort/core/error.h"
#include "cohort/estimator/estimator_parts.h"

namespace cohort::estimator {

void HookContext::set_step(std::int64_t global_step, std::function<at::Tensor()> loss) {
  global_step_ = global_step;
  make_loss_ = std::move(loss);
  loss_.reset();
}

double HookContext::loss() {
  if (loss_) return *loss_;
  COHORT_CHECK(
      make_loss_ != nullptr, ErrorCode::failed_precondition,
      "[estimator.hook] expected loss() after a step, got it before the first one; call it "
      "in after_step()");
  loss_ = std::exchange(make_loss_, nullptr)().item().toDouble();
  return *loss_;
}

Estimator::Estimator(ModelFunction model_fn, RunConfig config)
    : parts_(std::make_unique<EstimatorParts>(std::move(model_fn), std::move(config))) {}
Estimator::~Estimator() = default;
Estimator::Estimator(Estimator&&) noexcept = default;
Estimator& Estimator::operator=(Estimator&&) noexcept = default;

// As tf, where a task alone would not wait for the others.
std::int64_t Estimator::train(const InputFunction& input_fn, const TrainOptions& options) {
  COHORT_CHECK(config().coordinator_mode() == CoordinatorMode::none, ErrorCode::invalid_argument,
               "[estimator.train] expected a process without a cluster, got task ",
               config().task_type(), ":", config().task_id(),
               "; the tasks of a cluster call train_and_evaluate()");
  return parts_->train(input_fn, options);
}

EvaluationResult Estimator::evaluate(const InputFunction& input_fn,
                                     const EvaluateOptions& options) {
  return parts_->evaluate(input_fn, options);
}

void Estimator::predict(const InputFunction& input_fn, const std::function<void(const Nest&)>& take,
                        const PredictOptions& options) {
  parts_->predict(input_fn, take, options);
}

std::string Estimator::export_values(const std::string& base, const std::string& checkpoint_path) {
  return parts_->export_values(base, checkpoint_path);
}

std::optional<std::string> Estimator::latest_checkpoint() const {
  return parts_->latest_checkpoint();
}

std::vector<std::string> Estimator::get_variable_names() const {
  std::vector<std::string> names;
  for (const auto& tensor :
       checkpoint::summary_of(parts_->existing_checkpoint("get_variable_names")).tensors)
    names.push_back(tensor.name);
  std::sort(names.begin(), names.end());
  return names;
}

at::Tensor Estimator::get_variable_value(const std::string& name) const {
  checkpoint::FolderReader reader(parts_->existing_checkpoint("get_variable_value"));
  COHORT_CHECK(reader.manifest().tensors.contains(name), ErrorCode::not_found,
               "[estimator.get_variable_value] expected a name of get_variable_names(), got '",
               name, "'");
  return reader.read(name);
}

const RunConfig& Estimator::config() const { return parts_->config(); }

}  // namespace cohort::estimator
