// SPDX-License-Identifier: Apache-2.0
#include "cohort/coordinator/queue/pending_closures.h"

namespace cohort::coordinator {
namespace {

// More memory than this would fall out of the caches before it is used again.
constexpr std::size_t kSparesMax = 1024;

}  // namespace

bool PendingClosure::capture_for_step() {
  EpochRun& epoch = *in_epoch.run;
  if (epoch.has_no_rate) return false;
  in_epoch.is_counted = !epoch.progress.expects_end(in_epoch.worker, in_epoch.step);
  captured_at = hyperparameter_time();
  try {
    captured = in_epoch.is_counted ? function->captured(counted) : function->captured_uncounted();
    return true;
  } catch (...) {
    epoch.has_no_rate = true;
    if (!epoch.error) epoch.error = current_error();
    return false;
  }
}

bool PendingClosure::add_captured() {
  const bool is_counted = in_epoch.run == nullptr || in_epoch.is_counted;
  return function->add_captured(captured, captured_at, is_counted ? &counted : nullptr);
}

void PendingClosure::end_step(const std::optional<Error>& error) {
  const EpochPlace& place = in_epoch;
  EpochRun& epoch = *place.run;
  epoch.progress.close_step(place.worker);
  if (error) {
    if (!epoch.error) epoch.error = error;
    return;
  }
  if (place.is_end) return epoch.progress.note_end(place.worker, place.step);
  epoch.progress.note_run(place.worker, place.step);
  try {
    if (!place.is_counted) {  // the data has more elements than its cardinality
      static_cast<void>(function->captured(counted));
      counted.keep();
    }
    Nest value = function->result_of(std::move(reported));
    if (!epoch.is_over)
      epoch.finished.push_back({place.worker, place.step, place.rows, std::move(value)});
  } catch (...) {  // the outputs do not fill the function's result
    if (!epoch.error) epoch.error = current_error();
  }
}

void PendingClosure::abandon(const Error& error) {
  if (runs > 0) counted.keep();
  if (const auto state = result.lock()) state->fail(error);
}

void PendingClosures::add(ClosureId closure, PendingClosure&& pending) {
  bytes_ += pending.arguments.nbytes();
  if (spare_.empty()) {
    pending_.emplace(closure, std::move(pending));
    return;
  }
  auto node = std::move(spare_.back());
  spare_.pop_back();
  node.key() = closure;
  node.mapped() = std::move(pending);
  pending_.insert(std::move(node));
}

PendingClosure* PendingClosures::find(ClosureId closure) {
  const auto found = pending_.find(closure);
  return found == pending_.end() ? nullptr : &found->second;
}

void PendingClosures::renumber(ClosureId closure, ClosureId id) {
  auto node = pending_.extract(closure);
  if (node.empty()) return;
  node.key() = id;
  pending_.insert(std::move(node));
}

void PendingClosures::erase(ClosureId closure) {
  const auto found = pending_.find(closure);
  if (found == pending_.end()) return;
  bytes_ -= found->second.arguments.nbytes();
  pending_.erase(found);
}

void PendingClosures::retire(Map::iterator closure) {
  bytes_ -= closure->second.arguments.nbytes();
  auto node = pending_.extract(closure);
  node.mapped() = {};
  if (spare_.size() < kSparesMax) spare_.push_back(std::move(node));
}

}  // namespace cohort::coordinator
