// SPDX-License-Identifier: Apache-2.0
#include "cohort/estimator/training/shared_steps.h"

#include <ATen/core/TensorBody.h>

#include <memory>
#include <optional>
#include <utility>

#include "cohort/checkpoint/checkpoint.h"
#include "cohort/checkpoint_files/inspection.h"

namespace cohort::estimator {

SharedSteps::SharedSteps(v1::ParameterServerStrategy& strategy)
    : strategy_(strategy), steps_(strategy.global_step()) {}

// The run has the new value, so that to read it costs no message.
void SharedSteps::add_one(bool is_traced) {
  steps_.assign_add(1);
  if (!is_traced) known_ = steps_.read().item<std::int64_t>();
}

std::int64_t SharedSteps::read() const {
  const std::int64_t known = known_;
  return known >= 0 ? known : steps_.read().item<std::int64_t>();
}

void SharedSteps::let_others_train(const std::string& model_dir) {
  if (!strategy_.is_chief()) return;
  // The strategy may call it when this training has ended, so it has a Checkpoint of its own.
  auto checkpoint = std::make_shared<Checkpoint>(strategy_);
  strategy_.restore_after_loss(
      [checkpoint = std::move(checkpoint), model_dir]() -> std::optional<std::int64_t> {
        if (checkpoint::checkpoints_in(model_dir).empty()) return std::nullopt;
        return checkpoint->read(checkpoint::latest_of(model_dir), {.allow_missing = true}).step;
      });
  strategy_.let_others_train();
}

}  // namespace cohort::estimator
