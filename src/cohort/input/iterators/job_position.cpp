// SPDX-License-Identifier: Apache-2.0
#include "cohort/input/iterators/job_position.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "cohort/core/error.h"
#include "cohort/core/fields.h"

namespace cohort::input {

constexpr std::uint8_t kPositionVersion = 3;

// Mini-batches whose tensors are among the bytes.
struct Elements {
  std::vector<Fields>& all;
};

template <class Codec>
void fields(Codec& codec, Elements& elements) {
  if constexpr (Codec::kReads) {
    for (std::size_t left = codec.bytes().count(); left > 0; --left)
      elements.all.push_back(data::read_fields(codec.bytes()));
  } else {
    codec.bytes().varint(elements.all.size());
    for (const Fields& element : elements.all) data::write_fields(codec.bytes(), element);
  }
}

// `part` has been read: its index must be below its number.
template <class Codec, class Part>
void check_part(const Codec& codec, const Part& part, std::string_view expected) {
  if constexpr (Codec::kReads) {
    if (part.num < 1 || part.index < 0 || part.index >= part.num) codec.fail(expected);
  }
}

template <class Codec>
void fields(Codec& codec, ModuloShard& shard) {
  codec(shard.num, shard.index, shard.count);
  check_part(codec, shard, "a part of a part");
}

template <class Codec>
void fields(Codec& codec, ShardPosition& shard) {
  codec(shard.num, shard.index, shard.subshards, shard.drawn, shard.pipeline, shard.state);
  check_part(codec, shard, "a part of a dataset");
}

template <class Codec>
void fields(Codec& codec, WorkerPipelinePosition& pipeline) {
  codec(Elements{pipeline.undelivered}, pipeline.rebatcher_index, Elements{pipeline.rest},
        Elements{pipeline.leading}, pipeline.turn, pipeline.shards);
}

// All but the pipelines of workers.
template <class Codec>
void fields(Codec& codec, JobPosition& job) {
  std::uint8_t version = kPositionVersion;
  codec(version);
  if constexpr (Codec::kReads) {
    if (version != kPositionVersion) codec.fail("version 3");
  }
  std::int64_t steps_left = job.steps_left.value_or(-1);
  codec(Choice(job.sharding_mode, ShardingMode::by_function, "a sharding mode"), job.is_own,
        job.reduces_status, job.is_over, job.num_local_replicas, job.num_pipeline_replicas,
        steps_left, job.steps, Fixed{job.order.seed}, job.order.pass, job.spec);
  if (Codec::kReads && steps_left >= 0) job.steps_left = steps_left;
}

namespace {

constexpr std::int64_t kNumberMax = 1 << 20;  // of workers and replicas

bool is_sound_pipeline(const WorkerPipelinePosition& pipeline) {
  return std::all_of(pipeline.shards.begin(), pipeline.shards.end(),
                     [](const ShardPosition& shard) { return shard.num <= kNumberMax; });
}

bool is_same(const ShardPosition& a, const ShardPosition& b) {
  return a.num == b.num && a.index == b.index && a.drawn == b.drawn && a.subshards.empty() &&
         b.subshards.empty();
}

// Adds the mini-batches drawn but not handed out, in order.
void move_leftovers(WorkerPipelinePosition& pipeline, std::vector<Fields>& leftovers) {
  for (std::vector<Fields>* some : {&pipeline.undelivered, &pipeline.rest, &pipeline.leading}) {
    std::move(some->begin(), some->end(), std::back_inserter(leftovers));
  }
}

// Every `targets`-th element of the list from `target` on: the part of that pipeline.
template <class T>
std::vector<T> distributed(const std::vector<T>& all, std::size_t target, std::size_t targets) {
  std::vector<T> own;
  for (std::size_t i = target; i < all.size(); i += targets) own.push_back(all[i]);
  return own;
}

}  // namespace

Bytes JobPosition::encode_pipelines(const std::vector<WorkerPipelinePosition>& pipelines) {
  return encode_fields(pipelines);
}

Bytes JobPosition::encode(std::vector<Bytes> all_pipelines) const {
  FieldWriter out;
  JobPosition head = *this;
  out(head, all_pipelines);
  return out.take_bytes();
}

JobPosition JobPosition::decode(std::span<const std::byte> bytes) {
  FieldReader reader(bytes, "position in a distributed dataset");
  JobPosition job;
  std::vector<Bytes> all_pipelines;
  reader(job, all_pipelines);
  reader.expect_end();
  for (const Bytes& pipelines : all_pipelines)
    job.workers.push_back(
        decode_fields<std::vector<WorkerPipelinePosition>>(pipelines, "position of a worker"));
  if (!job.is_sound()) reader.fail("a worker, each with equally many pipelines");
  return job;
}

bool JobPosition::is_sound() const {
  if (workers.empty() || num_local_replicas < 1 || num_pipeline_replicas < 1 ||
      num_pipeline_replicas > kNumberMax) {
    return false;
  }
  const std::size_t pipelines = workers.front().size();
  const std::size_t pipelines_max = sharding_mode == ShardingMode::by_function
                                        ? static_cast<std::size_t>(num_local_replicas)
                                        : std::size_t{1};
  return pipelines >= 1 && pipelines <= pipelines_max &&
         std::all_of(workers.begin(), workers.end(), [&](const auto& worker) {
           return worker.size() == pipelines &&
                  std::all_of(worker.begin(), worker.end(), is_sound_pipeline);
         });
}

bool JobPosition::has_numbers_of(const InputDistribution& distribution) const {
  return static_cast<int>(workers.size()) == distribution.host().num_workers() &&
         num_local_replicas == distribution.host().num_local_replicas() &&
         workers.front().size() == distribution.num_worker_pipelines();
}

namespace {

// All workers had the same shard; new parts of its batches follow the leftovers.
std::vector<WorkerPipelinePosition> take_over_data(JobPosition job, std::size_t target,
                                                   std::size_t targets) {
  WorkerPipelinePosition pipeline;
  std::vector<Fields> leftovers;
  pipeline.shards = job.workers.front().front().shards;
  COHORT_CHECK(!pipeline.shards.empty(), ErrorCode::data_loss,
               "[input.restore] expected a pipeline in the position of each worker, got none");
  for (std::vector<WorkerPipelinePosition>& pipelines : job.workers) {
    WorkerPipelinePosition& old = pipelines.front();
    COHORT_CHECK(old.shards.size() == 1 && is_same(old.shards.front(), pipeline.shards.front()),
                 ErrorCode::failed_precondition,
                 "[input.restore] expected workers at one place of the dataset, got some ahead of "
                 "others after an error on one of them; restore on ",
                 job.workers.size(), " workers");
    move_leftovers(old, leftovers);
  }
  pipeline.undelivered = distributed(leftovers, target, targets);
  return {std::move(pipeline)};
}

}  // namespace

std::vector<WorkerPipelinePosition> take_over(JobPosition job,
                                              const InputDistribution& distribution) {
  const std::size_t worker = static_cast<std::size_t>(distribution.host().worker());
  const std::size_t workers = static_cast<std::size_t>(distribution.host().num_workers());
  if (job.sharding_mode == ShardingMode::by_data)
    return take_over_data(std::move(job), worker, workers);
  const bool rebatches_others = distribution.rebatches_others(job.sharding_mode);
  std::size_t targets = workers * distribution.num_worker_pipelines();
  std::size_t first_target = worker * distribution.num_worker_pipelines();
  if (job.sharding_mode == ShardingMode::everything) {
    job.workers = {std::move(job.workers[worker % job.workers.size()])};
    targets = 1;
    first_target = 0;
  }
  std::vector<ShardPosition> shards;
  std::vector<Fields> leftovers;
  for (std::vector<WorkerPipelinePosition>& pipelines : job.workers) {
    for (WorkerPipelinePosition& pipeline : pipelines) {
      move_leftovers(pipeline, leftovers);
      std::move(pipeline.shards.begin(), pipeline.shards.end(), std::back_inserter(shards));
    }
  }
  std::vector<WorkerPipelinePosition> own(distribution.num_worker_pipelines());
  for (std::size_t i = 0; i < own.size(); ++i) {
    const std::size_t target = first_target + i;
    own[i].shards = distributed(shards, target, targets);
    if (targets > shards.size() && !shards.empty()) {  // some pipelines share a shard
      const std::size_t shard = target % shards.size();
      own[i].shards = {shards[shard]};
      const std::size_t sharers = (targets - shard + shards.size() - 1) / shards.size();
      own[i].shards.front().subshards.push_back(
          {.num = static_cast<std::int64_t>(sharers),
           .index = static_cast<std::int64_t>(target / shards.size())});
    }
    (rebatches_others ? own[i].leading : own[i].undelivered) =
        distributed(leftovers, target, targets);
  }
  return own;
}

}  // namespace cohort::input
