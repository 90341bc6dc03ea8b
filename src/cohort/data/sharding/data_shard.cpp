// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <optional>
#include <string_view>
#include <utility>

#include "cohort/core/error.h"
#include "cohort/data/graph/nest_codec.h"
#include "cohort/data/graph/spec_inference.h"
#include "cohort/data/sharding/graph_edit.h"
#include "cohort/data/sharding/selection.h"
#include "cohort/data/sharding/shard_plan.h"

namespace cohort::data {
namespace {

template <std::size_t N>
bool is_one_of(const Node& node, const std::array<std::string_view, N>& ops) {
  return std::ranges::find(ops, node.op()) != ops.end();
}

// Whether a graph can skip elements without computing them and knows their number, at the latest
// when its files are opened.
bool is_seekable(const Node& node) {
  if (is_rows(node) || is_seekable_reader(node)) return true;
  return (node.op() == "shuffle" || is_element_wise(node)) &&
         std::ranges::all_of(node.inputs(),
                             [](const NodePtr& input) { return is_seekable(*input); });
}

bool has_static_spec(const Node& node) {
  const ElementSpec* spec = node.known_spec();
  return spec != nullptr && is_static(*spec);
}

// The end of a graph in the form that the op `share` can replace: the input and attributes of
// `share`, and the ops between the batch and its split.
struct Sharing {
  NodePtr input;
  Attributes attributes;
  std::vector<NodePtr> between;  // outermost first
};

Sharing elements_of(NodePtr input) {
  return {.input = std::move(input),
          .attributes = {{"batch_size", 0}, {"drop_remainder", false}, {"parts", 1}},
          .between = {}};
}

std::optional<Sharing> batches_of(const NodePtr& body) {
  static constexpr std::array<std::string_view, 3> kBetween{"options", "prefetch", "repeat"};
  Sharing sharing;
  std::int64_t parts = 1;
  NodePtr node = body;
  if (node->op() == "rebatch_split") {
    const auto found = find_integer(*node, "parts");
    if (!found) return std::nullopt;
    parts = *found;
    node = node->inputs().front();
  }
  while (is_one_of(*node, kBetween)) {
    sharing.between.push_back(node);
    node = node->inputs().front();
  }
  if (node->op() != "batch") return std::nullopt;
  sharing.input = node->inputs().front();
  sharing.attributes = node->attributes();
  sharing.attributes.emplace("parts", parts);
  return sharing;
}

// Whether distributing each pass separately distributes the repeated batches in the same way.
bool may_repeat(const Sharing& sharing, std::int64_t minibatches, std::int64_t num_shards) {
  const bool repeats = std::ranges::any_of(
      sharing.between, [](const NodePtr& node) { return node->op() == "repeat"; });
  return !repeats || minibatches < 0 || minibatches % num_shards == 0;
}

NodePtr share_of(const Sharing& sharing, std::int64_t num_shards, std::int64_t index) {
  Attributes attributes = sharing.attributes;
  attributes.insert_or_assign("num_shards", num_shards);
  attributes.insert_or_assign("index", index);
  return make_node("shard_by_index", {sharing.input}, attributes);
}

// The graph with `share` at its end. nullptr if only a plain shard() yields the same elements, or
// if it is as fast.
NodePtr by_index(const NodePtr& body, const AutoShardOptions& options) {
  std::optional<Sharing> sharing = batches_of(body);
  if (!sharing && is_rows(*body)) return nullptr;  // shard() of rows computes no other elements
  if (!sharing) sharing = elements_of(body);
  if (!is_seekable(*sharing->input)) return nullptr;
  const std::int64_t parts = sharing->attributes.at("parts").integer();
  if (parts > 1 && !has_static_spec(*sharing->input)) return nullptr;
  std::int64_t all = share_of(*sharing, 1, 0)->cardinality();
  if (all == kUnknownCardinality) {
    // The number of mini-batches is a multiple of `parts`.
    if (parts % options.num_workers != 0) return nullptr;
    all = parts;
  }
  // If there are fewer mini-batches than shards, shard() reports the error.
  if (all >= 0 && all < options.num_workers) return nullptr;
  if (!may_repeat(*sharing, all, options.num_workers)) return nullptr;
  const Tail tail{.nodes = sharing->between, .body = nullptr};
  return tail.over(share_of(*sharing, options.num_workers, options.index));
}

}  // namespace

bool is_rows(const Node& node) {
  static constexpr std::array<std::string_view, 3> kStores{"from_tensor_slices", "idx", "range"};
  static constexpr std::array<std::string_view, 7> kRowOps{"options", "prefetch", "repeat", "shard",
                                                           "shuffle", "skip",     "take"};
  return is_one_of(node, kStores) || (is_one_of(node, kRowOps) && is_rows(node.input()));
}

DataShards shard_data(const NodePtr& sink, const AutoShardOptions& options, RebatchMode rebatch) {
  DataShards shards;
  const Tail tail = tail_of(sink);
  NodePtr body = tail.body;
  if (body->op() == "rebatch" && rebatch != RebatchMode::sized) {
    COHORT_CHECK(options.num_replicas >= 1, ErrorCode::invalid_argument,
                 "[data.auto_shard] expected num_replicas >= 1 to split rebatched batches into, "
                 "got ",
                 options.num_replicas);
    body = make_node("rebatch_split", {body->inputs().front()}, {{"parts", options.num_replicas}});
    shards.is_split = true;
  }
  NodePtr dealt;
  if (options.num_workers == 1) {
    dealt = body;
  } else {
    dealt = by_index(body, options);
    shards.is_by_index =
        is_rows(*body) || (dealt != nullptr && dealt->cardinality() != kUnknownCardinality);
  }
  if (dealt == nullptr) dealt = sharded(body, options.num_workers, options.index);
  if (shards.is_split) {
    // Keeps the spec that the user has seen, even if it is wrong now (spec 3.6).
    const ElementSpec& seen = tail.body->spec();
    if (seen.fields != dealt->spec().fields) {
      dealt = make_node("with_spec", {dealt}, {{"spec", nest_of(seen)}});
    }
  }
  shards.graph = tail.over(std::move(dealt));
  return shards;
}

}  // namespace cohort::data
