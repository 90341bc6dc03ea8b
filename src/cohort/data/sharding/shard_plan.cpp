// SPDX-License-Identifier: Apache-2.0
#include "cohort/data/sharding/shard_plan.h"

#include <sstream>
#include <utility>

#include "cohort/core/error.h"
#include "cohort/data/sharding/graph_edit.h"

namespace cohort::data {
namespace {

void check(const AutoShardOptions& options, AutoShardPolicy policy) {
  COHORT_CHECK(options.num_workers >= 1, ErrorCode::invalid_argument,
               "[data.auto_shard] expected num_workers >= 1, got ", options.num_workers);
  COHORT_CHECK(options.index >= 0 && options.index < options.num_workers,
               ErrorCode::invalid_argument,
               "[data.auto_shard] expected 0 <= index < num_workers = ", options.num_workers,
               ", got ", options.index);
  COHORT_CHECK(options.num_replicas >= 0, ErrorCode::invalid_argument,
               "[data.auto_shard] expected num_replicas >= 0, got ", options.num_replicas);
  COHORT_CHECK(policy >= AutoShardPolicy::off && policy <= AutoShardPolicy::hint,
               ErrorCode::invalid_argument, "[data.auto_shard] expected a policy of -1 to 3, got ",
               static_cast<int>(policy));
}

class Planner {
 public:
  Planner(const Dataset& dataset, const AutoShardOptions& options)
      : sink_(dataset.node()), options_(options), of_dataset_(dataset.options()) {
    plan_.decision.asked = options.policy.value_or(of_dataset_.auto_shard_policy);
    check(options, plan_.decision.asked);
  }

  ShardPlan operator()() {
    switch (plan_.decision.asked) {
      case AutoShardPolicy::off:
        leave("every worker reads everything");
        break;
      case AutoShardPolicy::data:
        by_data("asked for");
        break;
      case AutoShardPolicy::hint:
        by_hint();
        break;
      case AutoShardPolicy::file:
        if (options_.num_workers == 1) {
          plan_.decision.taken = AutoShardPolicy::file;
          leave("there is one worker");
          break;
        }
        [[fallthrough]];
      case AutoShardPolicy::automatic:
        by_file();
        break;
    }
    return std::move(plan_);
  }

 private:
  bool is_automatic() const { return plan_.decision.asked == AutoShardPolicy::automatic; }

  void leave(std::string reason) {
    plan_.decision.reason = std::move(reason);
    plan_.graph = sink_;
  }

  void warn(std::string text) {
    if (options_.num_workers > 1) plan_.decision.warnings.push_back(std::move(text));
  }

  void by_data(std::string reason) {
    DataShards shards = shard_data(sink_, options_, options_.rebatch.value_or(of_dataset_.rebatch));
    plan_.decision.taken = AutoShardPolicy::data;
    plan_.decision.reason = std::move(reason);
    plan_.decision.is_split = shards.is_split;
    plan_.decision.is_by_index = shards.is_by_index;
    plan_.graph = std::move(shards.graph);
  }

  void by_hint() {
    plan_.decision.taken = AutoShardPolicy::hint;
    leave("asked for");
    plan_.graph = edited(sink_, [this](NodePtr node) {
      if (node->op() != "shard" || find_integer(*node, "num_shards") != kShardHint) return node;
      ++plan_.decision.hints;
      return sharded(node->inputs().front(), options_.num_workers, options_.index);
    });
    if (plan_.decision.hints == 0) {
      plan_.decision.reason = "no shard(kShardHint, …) is in the graph: nothing is distributed";
    }
  }

  void by_file() {
    auto walked = shard_files(sink_, options_.num_workers, options_.index);
    if (const auto* refusal = std::get_if<FileRefusal>(&walked)) return refused(*refusal);
    FileShards& shards = std::get<FileShards>(walked);
    if (has_too_few(shards)) return;
    plan_.decision.taken = AutoShardPolicy::file;
    for (const NameStream& stream : shards.streams) {
      const std::int64_t count = stream.names->cardinality();
      plan_.decision.files.push_back(
          {.reader = stream.reader,
           .file_count = count >= 0 ? std::optional(count) : std::nullopt});
    }
    plan_.decision.reason = is_automatic() ? "the dataset reads files" : "asked for";
    for (std::string& note : shards.notes) warn(std::move(note));
    plan_.graph = std::move(shards.graph);
  }

  void refused(const FileRefusal& refusal) {
    plan_.decision.refused_by = refusal.op;
    const std::string why = "'" + refusal.op + "': " + refusal.reason;
    COHORT_CHECK(
        is_automatic(), ErrorCode::not_found,
        "[data.auto_shard] expected a dataset whose files can be distributed (policy FILE), "
        "got ",
        why, "; use the policy DATA, or OFF and shard() in a dataset function");
    warn("files cannot be distributed (" + why +
         "): elements are distributed by number; to avoid this warning, set the policy to DATA");
    by_data("FILE is not possible: " + why);
  }

  // Handles inputs with fewer files than workers if too_few_files is set: throws, or shards by
  // data. Returns whether it sharded by data.
  bool has_too_few(const FileShards& shards) {
    if (!options_.too_few_files) return false;
    for (const NameStream& stream : shards.streams) {
      const std::int64_t count = count_names(*stream.names, options_.num_workers);
      if (count == 0 || count >= options_.num_workers) continue;
      std::ostringstream counts;
      counts << "'" << stream.reader << "' reads " << count << " files on " << options_.num_workers
             << " workers";
      COHORT_CHECK(
          *options_.too_few_files == TooFewFiles::data, ErrorCode::invalid_argument,
          "[data.auto_shard] expected a file for every worker at least, got: ", counts.str(),
          "; use more files, the policy DATA or OFF, or too_few_files = data");
      warn(counts.str() + ": elements are distributed by number instead");
      by_data(counts.str());
      return true;
    }
    return false;
  }

  const NodePtr& sink_;
  const AutoShardOptions& options_;
  DatasetOptions of_dataset_;
  ShardPlan plan_;
};

}  // namespace

ShardPlan plan_shards(const Dataset& dataset, const AutoShardOptions& options) {
  return Planner(dataset, options)();
}

}  // namespace cohort::data
