// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "cohort/core/error.h"
#include "cohort/data/functions/dataset_function.h"
#include "cohort/data/ops/op_registry.h"
#include "cohort/data/sharding/graph_edit.h"
#include "cohort/data/sharding/shard_plan.h"
#include "cohort/data/stages/stage.h"

namespace cohort::data {
namespace {

ShardRule rule_of(const Node& node) { return known_op(node.op()).shard_rule; }

// Whether a graph has a file reader, also in the dataset functions of its nodes.
bool reads_files(const Node& node) {
  if (rule_of(node) == ShardRule::reader) return true;
  const DatasetFunction* function = node.dataset_function();
  if (function != nullptr && reads_files(function->example(node.input()))) return true;
  return std::ranges::any_of(node.inputs(),
                             [](const NodePtr& input) { return reads_files(*input); });
}

// Removes the shuffles; sets last_shuffle to the one nearest to the source.
NodePtr without_shuffles(const NodePtr& node, NodePtr& last_shuffle) {
  const bool is_shuffle = node->op() == "shuffle";
  if (is_shuffle) last_shuffle = node;
  std::vector<NodePtr> inputs;
  for (const NodePtr& input : node->inputs())
    inputs.push_back(without_shuffles(input, last_shuffle));
  return is_shuffle ? inputs.front() : over(node, std::move(inputs));
}

class FileWalk {
 public:
  FileWalk(std::int64_t num_shards, std::int64_t index) : num_shards_(num_shards), index_(index) {}

  std::variant<FileShards, FileRefusal> operator()(const NodePtr& sink) {
    shards_.graph = visit(sink);
    if (refusal_) return *std::move(refusal_);
    return std::move(shards_);
  }

 private:
  // The rewritten node; nullptr if it refuses.
  NodePtr visit(const NodePtr& node) {
    const auto found = done_.find(node.get());
    if (found != done_.end()) return found->second;
    NodePtr made = rewritten(node);
    done_.emplace(node.get(), made);
    return made;
  }

  NodePtr rewritten(const NodePtr& node) {
    switch (rule_of(*node)) {
      case ShardRule::source:
        return refuse(*node, "it has no files");
      case ShardRule::refuse:
        return refuse(*node, "its elements can be distributed only by number");
      case ShardRule::pass_through:
        note_counting(*node);
        return first_input(node);
      case ShardRule::all_inputs:
        return every_input(node);
      case ShardRule::remove:
        shards_.notes.push_back("'" + std::string(node->op()) + "' is removed: no worker sees " +
                                "all elements");
        return visit(node->inputs().front());
      case ShardRule::reader:
        if (node->inputs().empty()) return refuse(*node, "its list of files cannot be distributed");
        return shard_names(node);
      case ShardRule::dataset_function:
        return of_function(node);
    }
    return nullptr;
  }

  NodePtr refuse(const Node& node, std::string reason) {
    if (!refusal_) refusal_ = {.op = std::string(node.op()), .reason = std::move(reason)};
    return nullptr;
  }

  void note(const Node& node, std::string_view change) {
    shards_.notes.push_back("'" + std::string(node.op()) + "' " + std::string(change) +
                            ", so all workers together may get other elements than one process "
                            "would; to distribute elements by number instead, set the policy to "
                            "DATA");
  }

  void note_counting(const Node& node) {
    const bool is_take = node.op() == "take", is_skip = node.op() == "skip";
    if (!is_take && !is_skip && node.op() != "shard") return;  // the attributes of others may cost
    const std::int64_t number =
        find_integer(node, is_take || is_skip ? "count" : "num_shards").value();
    const bool counts = is_take ? number >= 0 : is_skip ? number != 0 : number > 1;
    if (counts) note(node, "counts only the elements of the files of one worker");
  }

  NodePtr first_input(const NodePtr& node) {
    std::vector<NodePtr> inputs = node->inputs();
    inputs.front() = visit(inputs.front());
    return inputs.front() == nullptr ? nullptr : over(node, std::move(inputs));
  }

  NodePtr every_input(const NodePtr& node) {
    std::vector<NodePtr> inputs;
    int num_with_files = 0;  // of their own
    for (const NodePtr& input : node->inputs()) {
      const std::size_t streams = shards_.streams.size();
      inputs.push_back(visit(input));
      if (inputs.back() == nullptr) return nullptr;
      num_with_files += shards_.streams.size() > streams ? 1 : 0;
    }
    if (node->op() == "zip" && num_with_files > 1)
      note(*node,
           "pairs elements of the files of one worker, and files at one place of the lists "
           "may have different numbers of them");
    return over(node, std::move(inputs));
  }

  NodePtr of_function(const NodePtr& node) {
    bool has_reader = false;
    try {
      has_reader = reads_files(node->dataset_function()->example(node->input()));
    } catch (...) {
      return refuse(
          *node, "no example shows whether its function reads files: " + current_error().message());
    }
    return has_reader ? shard_names(node) : first_input(node);
  }

  // Inserts the shard before the shuffle: if each worker sharded differently shuffled names, some
  // files would be read twice and others never.
  NodePtr shard_names(const NodePtr& reader) {
    NodePtr shuffle;
    std::vector<NodePtr> inputs = reader->inputs();
    const NodePtr names = without_shuffles(inputs.front(), shuffle);
    shards_.streams.push_back({.reader = std::string(reader->op()), .names = names});
    if (num_shards_ == 1) return reader;
    inputs.front() = sharded(names, num_shards_, index_);
    if (shuffle != nullptr) inputs.front() = shuffle->with_inputs({inputs.front()});
    return over(reader, std::move(inputs));
  }

  std::int64_t num_shards_;
  std::int64_t index_;
  FileShards shards_;
  std::optional<FileRefusal> refusal_;
  std::map<const Node*, NodePtr> done_;
};

}  // namespace

std::variant<FileShards, FileRefusal> shard_files(const NodePtr& sink, std::int64_t num_shards,
                                                  std::int64_t index) {
  return FileWalk(num_shards, index)(sink);
}

std::int64_t count_names(const Node& names, std::int64_t limit) {
  const std::int64_t known = names.cardinality();
  if (known == kInfiniteCardinality) return limit;
  if (known >= 0) return std::min(known, limit);
  const std::unique_ptr<Stage> stage = names.start(StageContext({.seed = 1}, Purpose::preview));
  return stage->skip(limit);
}

}  // namespace cohort::data
