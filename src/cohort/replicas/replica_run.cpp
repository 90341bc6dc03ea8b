// SPDX-License-Identifier: Apache-2.0
#include "cohort/replicas/replica_run.h"

#include <ATen/Parallel.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <utility>

#include "cohort/core/error.h"
#include "cohort/core/exception_context.h"
#include "cohort/core/log.h"
#include "cohort/replicas/run_error.h"
#include "cohort/replicas/spin_wait.h"

namespace cohort::internal {

ReplicaRun::ReplicaRun(int count, int first, Duration patience)
    : count_(static_cast<std::size_t>(count)),
      first_(first),
      threads_(at::get_num_threads()),
      patience_(patience),
      offers_(count_),
      errors_(count_),
      was_released_(count_) {}

std::string ReplicaRun::name_of(std::size_t replica) const {
  return "replica " + std::to_string(first_ + static_cast<int>(replica));
}

// No later meeting can be complete.
void ReplicaRun::throw_if_one_ended(int replica) {
  if (!first_ended_) return;
  const std::string waiting = name_of(static_cast<std::size_t>(replica));
  const std::string ended = name_of(*first_ended_);
  if (errors_[*first_ended_]) {
    was_released_[static_cast<std::size_t>(replica)] = true;
    throw_error(ErrorCode::cancelled, "[strategy.run] ", ended, " failed while ", waiting,
                " waited for it");
  }
  throw_error(
      ErrorCode::failed_precondition,
      "[strategy.run] expected the same calls in which replicas meet (minimize(), average_loss(), "
      "merge_call(), all_reduce() and its backward pass, assignments that are aggregated) in all "
      "replicas, got ",
      ended, ", which has returned after ", meetings_.load(), " of them, and ", waiting,
      ", which makes one more; let no replica leave one out, also for an empty batch or a NaN");
}

ReplicaRun::Outcome ReplicaRun::merged(const std::vector<const MergeOffer*>& offers,
                                       const Merge& merge) const {
  try {
    std::vector<const void*> arguments;
    for (std::size_t i = 0; i < offers.size(); ++i) {
      const bool are_alike = *offers[i]->types == *offers[0]->types;
      COHORT_CHECK(are_alike || offers[i]->call == offers[0]->call, ErrorCode::invalid_argument,
                   "[strategy.run] expected the same call in all replicas, got ", offers[0]->call,
                   " in ", name_of(0), " and ", offers[i]->call, " in ", name_of(i),
                   "; make the calls in which replicas meet in the same order in each. A backward "
                   "pass makes the call of a gradient only where a variable lies behind it");
      COHORT_CHECK(are_alike, ErrorCode::invalid_argument, "[strategy.", offers[0]->call,
                   "] expected the same call in all replicas, got other types of "
                   "arguments in ",
                   name_of(i), " than in ", name_of(0));
      arguments.push_back(offers[i]->arguments);
    }
    return {.result = merge(arguments), .error = nullptr};
  } catch (...) {
    return {.result = nullptr, .error = error_of_replica(std::current_exception())};
  }
}

std::shared_ptr<const void> ReplicaRun::meet(int replica, const MergeOffer& offer,
                                             const Merge& merge) {
  std::vector<const MergeOffer*> offers;
  std::uint64_t meeting = 0;
  {
    const Lock lock(mutex_);
    throw_if_one_ended(replica);
    meeting = meetings_;
    offers_[static_cast<std::size_t>(replica)] = &offer;
    ++arrived_;
    changed_.notify_all();
  }
  const auto can_go_on = [&] {
    return meetings_ != meeting || has_one_ended_ || (replica == 0 && is_complete());
  };
  spin_until(can_go_on);
  {
    const Lock lock(mutex_);
    if (!changed_.wait(mutex_, Deadline::after(patience_), can_go_on)) {
      log_waiting(static_cast<std::size_t>(replica));
      changed_.wait(mutex_, Deadline(), can_go_on);
    }
    // A replica may have gone on and ended since.
    if (meetings_ == meeting) {
      if (!is_complete()) throw_if_one_ended(replica);
    } else if (last_.error) {
      std::rethrow_exception(last_.error);
    } else {
      return last_.result;
    }
    offers = offers_;
  }
  Outcome outcome = merged(offers, merge);
  const Lock lock(mutex_);
  arrived_ = 0;
  std::ranges::fill(offers_, nullptr);
  ++meetings_;
  last_ = outcome;
  changed_.notify_all();
  if (outcome.error) std::rethrow_exception(outcome.error);
  return outcome.result;
}

void ReplicaRun::log_waiting(std::size_t replica) const {
  std::string missing;
  for (std::size_t i = 0; i < count_; ++i) {
    if (offers_[i] != nullptr && i < replica) return;
    if (offers_[i] == nullptr) missing += (missing.empty() ? "" : ", ") + name_of(i);
  }
  if (missing.empty()) return;  // the merge takes long
  log_warn(name_of(replica),
           " waits in a call in which replicas meet (minimize(), average_loss(), ",
           "all_reduce(), …) for ", missing,
           "; does it compute for so long, or wait for a lock that another one holds?");
}

void ReplicaRun::end(int replica, std::exception_ptr error) {
  const Lock lock(mutex_);
  errors_[static_cast<std::size_t>(replica)] = std::move(error);
  if (!first_ended_) first_ended_ = static_cast<std::size_t>(replica);
  has_one_ended_ = true;
  changed_.notify_all();
}

void ReplicaRun::rethrow_error() const {
  const Lock lock(mutex_);
  rethrow_first(errors_, was_released_, first_);
}

void rethrow_first(const std::vector<std::exception_ptr>& errors,
                   const std::vector<bool>& was_released, int first) {
  std::optional<std::size_t> failed;
  for (std::size_t i = errors.size(); i-- > 0;) {
    if (errors[i] && (!failed || !was_released[i] || was_released[*failed])) failed = i;
  }
  if (!failed) return;
  const std::exception_ptr error = errors[*failed];
  const bool is_of_all =
      std::ranges::all_of(errors, [&](const auto& other) { return other == error; });
  const auto named = [&] { return current_error().during(RunArguments::text_of(*failed, first)); };
  try {
    std::rethrow_exception(error);
  } catch (const Error&) {
    if (is_of_all) throw;
    throw named();
  } catch (const c10::Error&) {  // its what() would have a page of stack frames
    throw named();
  } catch (...) {  // the program may catch its own types
    if (!is_of_all) note_context(error, RunArguments::text_of(*failed, first));
    throw;
  }
}

}  // namespace cohort::internal
