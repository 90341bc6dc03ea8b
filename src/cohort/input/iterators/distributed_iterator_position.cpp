// SPDX-License-Identifier: Apache-2.0
// Saving and restoring a pass.
#include <string>
#include <utility>

#include "cohort/core/error.h"
#include "cohort/core/log.h"
#include "cohort/input/iterators/distributed_iterator_state.h"

namespace cohort::input {

Bytes DistributedIteratorState::save() {
  distribution_->host().check_current("save");
  const auto mine = [this] {
    std::vector<WorkerPipelinePosition> pipelines;
    for (const std::unique_ptr<MultiDeviceIterator>& pipeline : state_.pipelines) {
      pipelines.push_back(static_cast<WorkerPipeline&>(pipeline->source()).position());
      pipelines.back().undelivered = pipeline->undelivered();
    }
    return JobPosition::encode_pipelines(pipelines);
  };
  const JobPosition head{state_, distribution_->host().num_local_replicas(),
                         distribution_->user_spec()};
  return head.encode(group_ ? exchange("input.save", "a position to save", mine)
                            : std::vector<Bytes>{mine()});
}

void DistributedIteratorState::restore(std::span<const std::byte> position) {
  distribution_->host().check_current("restore");
  State next;
  std::string how;
  do_on_all([&] { next = restored(position, how); });
  state_ = std::move(next);
  dataset_->note_begun(state_.order);
  log_info("[input] pass ", state_.order.pass, " continues after step ", state_.steps, how);
}

DistributedIteratorState::State DistributedIteratorState::restored(
    std::span<const std::byte> position, std::string& how) const {
  JobPosition job = JobPosition::decode(position);
  const auto is_function = [](ShardingMode d) { return d == ShardingMode::by_function; };
  const auto is_everything = [](ShardingMode d) { return d == ShardingMode::everything; };
  COHORT_CHECK(
      job.spec == distribution_->user_spec() &&
          is_function(job.sharding_mode) == is_function(distribution_->sharding_mode()) &&
          is_everything(job.sharding_mode) == is_everything(distribution_->sharding_mode()),
      ErrorCode::invalid_argument,
      "[input.restore] expected a position in a distributed dataset of ",
      distribution_->user_spec(), " that is sharded in the same way, got one of ", job.spec,
      "; build it as when it was saved");
  const bool is_same = job.has_numbers_of(*distribution_);
  State state{job};
  state.is_own = is_same && job.is_own;
  // Workers that took over from others do not know their step counts, and end unevenly.
  state.reduces_status = group_ && (!is_same || job.reduces_status);
  if (!is_same) state.steps_left.reset();
  state.handles_partial_batches = !state.is_own || handles_partial_batches_;
  if (!is_same) how = ", redistributed from " + std::to_string(job.workers.size()) + " workers";
  std::vector<WorkerPipelinePosition> pipelines =
      is_same ? std::move(job.workers[static_cast<std::size_t>(distribution_->host().worker())])
              : take_over(std::move(job), *distribution_);
  state.pipelines = open(state, std::move(pipelines));
  return state;
}

}  // namespace cohort::input
