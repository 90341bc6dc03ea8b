// SPDX-License-Identifier: Apache-2.0
// Saving and restoring a pass.
#include <exception>
#include <string>
#include <utility>

#include "cohort/core/error.h"
#include "cohort/core/log.h"
#include "cohort/input/internal/job_position.h"
#include "cohort/input/internal/pass.h"

namespace cohort::input {

JobPosition Pass::head() const {
  return {.dealing = state_.dealing,
          .is_own = state_.is_own,
          .votes = state_.votes,
          .is_over = state_.is_over,
          .num_local_replicas = plan_->host().num_local_replicas(),
          .num_pipeline_replicas = state_.num_replicas,
          .steps_left = state_.steps_left,
          .steps = state_.steps,
          .seed = state_.run.seed,
          .pass = *state_.run.iteration,
          .spec = plan_->user_spec()};
}

Bytes Pass::save() {
  plan_->host().check_context("save");
  const auto mine = [this] {
    std::vector<FeedPosition> feeds;
    for (const std::unique_ptr<MultiDeviceIterator>& feed : state_.feeds) {
      feeds.push_back(static_cast<Feed&>(feed->source()).position());
      feeds.back().undelivered = feed->undelivered();
    }
    return JobPosition::encode_feeds(feeds);
  };
  const std::vector<Bytes> all =
      agreement_ ? agreement_->exchange_made(mine, "a position to save", deadline())
                 : std::vector<Bytes>{mine()};
  ByteWriter writer;
  head().write_head(writer);
  writer.varint(all.size());
  for (const Bytes& worker : all) writer.blob(worker);
  return writer.take();
}

void Pass::restore(std::span<const std::byte> position) {
  plan_->host().check_context("restore");
  State next;
  std::string how;
  std::exception_ptr error;
  try {
    next = restored(position, how);
  } catch (...) {
    error = std::current_exception();
  }
  check_all(error);
  state_ = std::move(next);
  log_info("[input] pass ", *state_.run.iteration, " goes on behind step ", state_.steps, how);
}

Pass::State Pass::restored(std::span<const std::byte> position, std::string& how) const {
  JobPosition job = JobPosition::decode(position);
  const auto is_function = [](Dealing d) { return d == Dealing::by_function; };
  const auto is_everything = [](Dealing d) { return d == Dealing::everything; };
  COHORT_CHECK(
      job.spec == plan_->user_spec() && is_function(job.dealing) == is_function(plan_->dealing()) &&
          is_everything(job.dealing) == is_everything(plan_->dealing()),
      ErrorCode::invalid_argument,
      "[input.restore] expected a position in a distributed dataset of ", plan_->user_spec(),
      " that is dealt out alike, got one of ", job.spec, "; build it as when it was saved");
  const bool is_same = job.has_numbers_of(*plan_);
  State state;
  state.dealing = job.dealing;
  state.is_own = is_same && job.is_own;
  state.num_replicas = job.num_pipeline_replicas;
  state.run.seed = job.seed;
  state.run.iteration = job.pass;
  state.steps = job.steps;
  state.is_over = job.is_over;
  // Workers that took over from others do not know their step counts, and end unevenly.
  state.votes = agreement_ && (!is_same || job.votes);
  state.steps_left = is_same ? job.steps_left : std::nullopt;
  state.handles_partial_batches = !state.is_own || handles_partial_batches_;
  if (!is_same) how = ", dealt anew from " + std::to_string(job.workers.size()) + " workers";
  std::vector<FeedPosition> feeds =
      is_same ? std::move(job.workers[static_cast<std::size_t>(plan_->host().worker())])
              : take_over(std::move(job), *plan_);
  state.feeds = open(state, std::move(feeds));
  return state;
}

}  // namespace cohort::input
