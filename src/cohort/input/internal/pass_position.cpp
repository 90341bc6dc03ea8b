// SPDX-License-Identifier: Apache-2.0
// Saving and restoring a pass.
#include <utility>

#include "cohort/core/error.h"
#include "cohort/core/log.h"
#include "cohort/input/internal/job_position.h"
#include "cohort/input/internal/pass.h"

namespace cohort::input {

JobPosition Pass::head() const {
  return {.dealing = dealing_,
          .is_own = is_own_,
          .votes = votes_,
          .is_over = is_over_,
          .num_local_replicas = plan_->host().num_local_replicas(),
          .num_pipeline_replicas = num_replicas_,
          .steps_left = steps_left_,
          .steps = steps_,
          .seed = run_.seed,
          .pass = *run_.iteration,
          .spec = plan_->user_spec()};
}

Bytes Pass::save() {
  plan_->host().check_context("save");
  Bytes mine;
  std::exception_ptr error;
  try {
    std::vector<FeedPosition> feeds;
    for (const std::unique_ptr<MultiDeviceIterator>& feed : feeds_) {
      feeds.push_back(static_cast<Feed&>(feed->source()).position());
      feeds.back().undelivered = feed->undelivered();
    }
    mine = JobPosition::encode_feeds(feeds);
  } catch (...) {
    error = std::current_exception();
  }
  check_all(error);
  std::vector<Bytes> all;
  if (agreement_) {
    all = agreement_->exchange(std::move(mine), "a position to save", deadline());
  } else {
    all.push_back(std::move(mine));
  }
  ByteWriter writer;
  head().write_head(writer);
  writer.varint(all.size());
  for (const Bytes& worker : all) writer.blob(worker);
  return writer.take();
}

void Pass::restore(std::span<const std::byte> position) {
  plan_->host().check_context("restore");
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
  dealing_ = job.dealing;
  num_replicas_ = job.num_pipeline_replicas;
  run_.seed = job.seed;
  run_.iteration = job.pass;
  steps_ = job.steps;
  is_over_ = job.is_over;
  // Workers that took over from others have counted nothing.
  votes_ = agreement_ && (!is_same || job.votes);
  steps_left_ = is_same ? job.steps_left : std::nullopt;
  if (!is_same) handles_partial_batches_ = true;
  const std::size_t workers = job.workers.size();
  is_own_ = is_same ? job.is_own : false;
  std::vector<FeedPosition> feeds =
      is_same ? std::move(job.workers[static_cast<std::size_t>(plan_->host().worker())])
              : take_over(std::move(job), *plan_);
  open(std::move(feeds));
  log_info("[input] pass ", *run_.iteration, " goes on behind step ", steps_,
           is_same ? "" : ", dealt anew from " + std::to_string(workers) + " workers");
}

}  // namespace cohort::input
