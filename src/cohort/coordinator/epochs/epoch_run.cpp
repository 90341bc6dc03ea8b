// SPDX-License-Identifier: Apache-2.0
#include "cohort/coordinator/epochs/epoch_run.h"

#include <algorithm>
#include <utility>

namespace cohort::coordinator {

Error epoch_is_over() {
  return Error(ErrorCode::failed_precondition,
               "[coordinator.run_epoch] expected a running epoch, got one that has ended with "
               "an error; begin another one");
}

void check_draws(bool does_draw, const std::string& step) {
  COHORT_CHECK(does_draw, ErrorCode::invalid_argument,
               "[coordinator.run_epoch] expected a step that draws from its iterator, got '", step,
               "', which draws nothing and would run for ever; call next() of its "
               "iterator in it");
}

std::optional<EpochStep> EpochRun::take_finished() {
  if (finished.empty()) return std::nullopt;
  EpochStep step = std::move(finished.front());
  finished.pop_front();
  return step;
}

bool EpochRun::check_order(std::uint32_t worker) {
  if (changing_order.empty() || error || !progress.has_begun(worker) || !progress.waits_for(worker))
    return true;
  const std::string name = "worker:" + std::to_string(worker);
  error = Error(ErrorCode::failed_precondition,
                "[coordinator.run_epoch] expected the elements of " + name +
                    ", which was lost or runs a step again, in the same order as before, got a "
                    "dataset that may yield them in another one (" +
                    changing_order +
                    "): some would be used twice and others never; set deterministic to true, and "
                    "start the epoch again from saved values",
                ErrorCause::application)
              .at(name);
  return false;
}

void OpenEpochs::add(const std::shared_ptr<EpochRun>& epoch) {
  std::erase_if(epochs_, [](const auto& one) { return one.expired(); });
  epochs_.push_back(epoch);
}

void OpenEpochs::check_orders(std::uint32_t worker) {
  for (const std::weak_ptr<EpochRun>& weak : epochs_) {
    if (const std::shared_ptr<EpochRun> epoch = weak.lock())
      if (!epoch->is_over) epoch->check_order(worker);
  }
}

std::vector<std::shared_ptr<EpochRun>> OpenEpochs::open() const {
  std::vector<std::shared_ptr<EpochRun>> all;
  for (const std::weak_ptr<EpochRun>& weak : epochs_)
    if (auto epoch = weak.lock(); epoch && !epoch->is_over) all.push_back(std::move(epoch));
  return all;
}

bool OpenEpochs::wait_for(std::uint32_t worker) const {
  return std::any_of(epochs_.begin(), epochs_.end(), [&](const auto& weak) {
    const std::shared_ptr<EpochRun> epoch = weak.lock();
    return epoch != nullptr && !epoch->is_over && !epoch->error &&
           epoch->progress.waits_for(worker);
  });
}

}  // namespace cohort::coordinator
