// SPDX-License-Identifier: Apache-2.0
#include "cohort/estimator/training/checkpoint_saver.h"

#include <algorithm>
#include <utility>

#include "cohort/checkpoint_files/inspection.h"
#include "cohort/core/error.h"
#include "cohort/core/log.h"
#include "cohort/estimator/strategy_kind.h"

namespace cohort::estimator {

CheckpointSaver::CheckpointSaver(Model& model, const RunConfig& config,
                                 std::vector<std::shared_ptr<SavingListener>> listeners)
    : model_(model),
      config_(config),
      listeners_(std::move(listeners)),
      manager_(model.checkpoint(), config.model_dir(),
               {.max_to_keep = config.options().keep_checkpoint_max,
                .keep_every = config.options().keep_checkpoint_every}),
      last_time_(config.clock().now()) {}

std::int64_t CheckpointSaver::restore() {
  const std::optional<std::string> latest = manager_.latest_checkpoint();
  if (!latest) return 0;
  const std::optional<Restored> restored = manager_.restore_latest({.allow_missing = true});
  if (restored->used.empty()) return 0;
  model_.check_restored(*restored);
  model_.set_restored(*latest, restored->step);
  last_step_ = restored->step;
  log_info("[estimator.train] goes on after step ", restored->step, ", from '", *latest, "'");
  return restored->step;
}

bool CheckpointSaver::begin(std::int64_t step) {
  for (const auto& listener : listeners_) listener->begin();
  last_time_ = config_.clock().now();
  const bool is_new = last_step_ < 0;
  return is_new && config_.saves_checkpoints() && save(step);
}

bool CheckpointSaver::is_due_by_steps(std::int64_t step) const {
  const std::optional<std::int64_t> next = next_step();
  return next && step >= *next;
}

bool CheckpointSaver::is_due_by_time(std::int64_t step) const {
  const std::optional<Duration> interval = config_.save_checkpoints_interval();
  return interval && step != last_step_ && config_.clock().now() >= last_time_ + *interval;
}

std::optional<std::int64_t> CheckpointSaver::next_step() const {
  const std::int64_t steps = config_.options().save_checkpoints_steps.value_or(0);
  return steps > 0 ? std::optional(std::max<std::int64_t>(last_step_, 0) + steps) : std::nullopt;
}

bool CheckpointSaver::save_if_possible(std::int64_t step) {
  try {
    return save(step);
  } catch (const Error& error) {
    const bool is_independent = kind_of(model_.strategy()) == StrategyKind::independent;
    if (!is_independent || error.code() != ErrorCode::aborted) throw;
    log_warn("[estimator.train] no checkpoint of step ", step, ": ", error.message());
    return false;
  }
}

bool CheckpointSaver::save(std::int64_t step) {
  for (const auto& listener : listeners_) listener->before_save(step);
  const PendingCheckpoint saving = manager_.save(step);
  last_step_ = step;
  last_time_ = config_.clock().now();
  model_.set_restored(saving.path(), step);
  if (listeners_.empty()) return false;
  saving.wait();
  bool wants_stop = false;
  for (const auto& listener : listeners_) wants_stop |= listener->after_save(step);
  return wants_stop;
}

bool CheckpointSaver::end(std::int64_t step) {
  bool wants_stop = false;
  if (config_.saves_checkpoints() && step != last_step_) wants_stop = save(step);
  for (const auto& listener : listeners_) listener->end(step);
  return wants_stop;
}

void CheckpointSaver::save_what_nobody_has_saved(std::int64_t step) {
  const std::optional<std::string> latest = manager_.latest_checkpoint();
  if (latest && checkpoint::summary_of(*latest).step >= step) return;
  begin(step);
  end(step);
}

}  // namespace cohort::estimator
