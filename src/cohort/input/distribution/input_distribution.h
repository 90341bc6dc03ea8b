// SPDX-License-Identifier: Apache-2.0
// Which worker reads which data: everything that a distributed dataset knows before a pass begins.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cohort/input/distributed_dataset.h"
#include "cohort/input/distribution/rebatcher.h"
#include "cohort/input/input_host.h"
#include "cohort/input/multi_device_iterator.h"

namespace cohort::input {

// How the pipelines of the workers divide the data. Part of the format of positions: never
// renumber.
enum class ShardingMode : std::uint8_t {
  by_data = 0,      // every worker runs the whole dataset and takes its parts of each batch
  by_graph = 1,     // every worker runs a graph of its own, which makes its mini-batches alone
  everything = 2,   // like by_graph, but without a policy: each makes all mini-batches
  by_function = 3,  // the user's function makes every pipeline
};

// Identifies one pipeline of a job.
struct PipelineId {
  std::int64_t num = 1;  // pipelines of the job
  std::int64_t index = 0;
  std::int64_t num_replicas = 1;  // of the job

  bool operator==(const PipelineId&) const = default;
};

// Thread-safe. Many methods because it answers everything that iterators ask about the division of
// the data, mostly in one line each.
class InputDistribution {
 public:
  static std::shared_ptr<InputDistribution> of_dataset(std::shared_ptr<const InputHost> host,
                                                       const Dataset& dataset,
                                                       const InputOptions& given);
  // Makes the distribution for the pipelines of this worker.
  static std::shared_ptr<InputDistribution> of_own_function(std::shared_ptr<const InputHost> host,
                                                            const DatasetFunction& fn,
                                                            const InputOptions& given);
  // The same. If `fn` fails on a worker, all workers throw its error: here if they are the first
  // group of the strategy, else in their next call.
  static std::shared_ptr<InputDistribution> of_function(std::shared_ptr<const InputHost> host,
                                                        const DatasetFunction& fn,
                                                        const InputOptions& given);

  const InputHost& host() const { return *host_; }
  const std::shared_ptr<const InputHost>& shared_host() const { return host_; }
  const InputOptions& options() const { return options_; }
  ShardingMode sharding_mode() const { return sharding_mode_; }
  // The cardinality of this worker's dataset, as the user wrote it.
  std::int64_t cardinality() const { return datasets_.front().cardinality(); }
  // Whether all workers are given one dataset, of which each reads its part.
  bool divides_one_dataset() const {
    return sharding_mode_ == ShardingMode::by_data || sharding_mode_ == ShardingMode::by_graph;
  }
  // The size for distribute_dataset() with several replicas; -1: not known.
  std::int64_t global_batch_size() const { return global_batch_size_; }
  const DistributedSpec& spec() const { return spec_; }
  std::string user_spec() const { return datasets_.front().element_spec().to_string(); }
  bool handles_partial_batches() const { return handles_partial_batches_; }
  // One per local replica, or one for all.
  std::size_t num_worker_pipelines() const { return num_worker_pipelines_; }

  std::unique_ptr<data::ElementSource> open(ShardingMode sharding_mode, const PipelineId& id,
                                            const IterationOptions& run) const;
  // The pipeline of number `pipeline` of this worker.
  PipelineId own_pipeline(ShardingMode sharding_mode, std::size_t pipeline) const;
  // For pipelines of this job, and for those taken over from a job of other numbers.
  std::unique_ptr<Rebatcher> own_rebatcher(ShardingMode sharding_mode) const;
  std::unique_ptr<Rebatcher> rebatcher_of_others(ShardingMode sharding_mode) const;
  // Whether rebatcher_of_others() regroups rows, so that mini-batches of another job may pass
  // through it.
  bool rebatches_others(ShardingMode sharding_mode) const;

  // The steps of this worker in a whole pass, if known exactly.
  std::optional<std::int64_t> num_steps() const;
  // Whether the mini-batches of a step are those of one global batch. Then an error costs the whole
  // batch on all workers, and the next step is the next batch everywhere.
  bool errors_cost_batch() const { return sharding_mode_ == ShardingMode::by_data || is_by_index_; }
  // Returns how much an error of a pipeline costs its replicas. If the pipeline splits or regroups
  // batches, the error has already cost a whole batch, which is a round, so it costs nothing more.
  ErrorTurn error_turn(ShardingMode sharding_mode, bool is_own) const {
    const bool has_whole_elements =
        sharding_mode == ShardingMode::by_function || (is_own && is_by_index_);
    return has_whole_elements ? ErrorTurn::round : ErrorTurn::none;
  }
  // No element can fail.
  bool cannot_fail() const;

  // Distinguishes the dataset of this worker from others, by data::graph_fingerprint().
  std::uint64_t fingerprint() const;
  // Whether a seed of the dataset and the number of the pass decide the order of its elements.
  bool is_reshuffled_by_seed() const;
  // "worker 0 of 2 (2 replicas) reads the whole dataset and takes parts 0, 2 of 4 of each batch":
  // for the log.
  std::string describe(ShardingMode sharding_mode) const;

 private:
  InputDistribution(std::shared_ptr<const InputHost> host, const InputOptions& given);
  void set_spec(ElementSpec component);
  std::vector<std::int64_t> own_parts() const;
  // How many elements of a pipeline a thread keeps ready.
  std::size_t read_ahead(ShardingMode sharding_mode) const;
  Dataset dataset_of(ShardingMode sharding_mode, const PipelineId& id) const;
  // Calls the user's function for a pipeline.
  Dataset call(const PipelineId& id) const;
  // For distribute_dataset() only.
  void choose_sharding_mode();
  ElementSpec cut_spec(ElementSpec spec) const;
  Dataset graph(const PipelineId& id) const;

  std::shared_ptr<const InputHost> host_;
  InputOptions options_;
  ShardingMode sharding_mode_ = ShardingMode::by_function;
  std::size_t num_worker_pipelines_ = 1;
  std::int64_t global_batch_size_ = -1;  // -1: not known
  bool is_by_index_ = false;
  // The policy of lone workers whose data is divided by element; it needs no warning.
  std::optional<AutoShardPolicy> policy_;
  bool handles_partial_batches_ = false;
  DistributedSpec spec_;
  // The user's; with a function one per pipeline.
  std::vector<Dataset> datasets_;
  std::optional<Dataset> own_graph_;  // by_graph, everything
  DatasetFunction fn_;
  std::string reason_;  // why this policy, for the log
};

}  // namespace cohort::input
