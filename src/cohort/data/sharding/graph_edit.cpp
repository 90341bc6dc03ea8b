// SPDX-License-Identifier: Apache-2.0
#include "cohort/data/sharding/graph_edit.h"

#include <map>
#include <utility>

#include "cohort/data/graph/op_node.h"
#include "cohort/data/ops/op_registry.h"
#include "cohort/data/raw_readers.h"

namespace cohort::data {
namespace {

NodePtr edited(const NodePtr& node, const std::function<NodePtr(NodePtr)>& edit,
               std::map<const Node*, NodePtr>& done) {
  const auto found = done.find(node.get());
  if (found != done.end()) return found->second;
  std::vector<NodePtr> inputs;
  for (const NodePtr& input : node->inputs()) inputs.push_back(edited(input, edit, done));
  return done.emplace(node.get(), edit(over(node, std::move(inputs)))).first->second;
}

}  // namespace

NodePtr make_node(std::string_view name, std::vector<NodePtr> inputs,
                  const Attributes& attributes) {
  const Op& op = known_op(name);
  AttributeReader reader(op.name, attributes);
  return op.make({std::move(inputs), reader});
}

Dataset raw_reader(const Dataset& reader, const StringTensor& files) {
  Attributes attributes = reader.node()->attributes();
  attributes.emplace("files", attribute_of(files.values()));
  return Dataset(make_node(reader.node()->op(), {}, attributes));
}

NodePtr sharded(NodePtr input, std::int64_t num_shards, std::int64_t index) {
  if (num_shards == 1) return input;
  return make_node("shard", {std::move(input)},
                   {{"num_shards", num_shards}, {"index", index}, {"require_non_empty", true}});
}

std::optional<std::int64_t> find_integer(const Node& node, const char* attribute) {
  const Attributes attributes = node.attributes();
  const auto found = attributes.find(attribute);
  if (found == attributes.end() || found->second.kind() != Nest::Kind::integer) return std::nullopt;
  return found->second.integer();
}

NodePtr over(const NodePtr& node, std::vector<NodePtr> inputs) {
  return inputs == node->inputs() ? node : node->with_inputs(std::move(inputs));
}

NodePtr edited(const NodePtr& sink, const std::function<NodePtr(NodePtr)>& edit) {
  std::map<const Node*, NodePtr> done;
  return edited(sink, edit, done);
}

NodePtr Tail::over(NodePtr other) const {
  for (auto node = nodes.rbegin(); node != nodes.rend(); ++node) {
    other = data::over(*node, {std::move(other)});
  }
  return other;
}

Tail tail_of(const NodePtr& sink) {
  Tail tail{.nodes = {}, .body = sink};
  while (tail.body->op() == "prefetch" || tail.body->op() == "options") {
    tail.nodes.push_back(tail.body);
    tail.body = tail.body->inputs().front();
  }
  return tail;
}

std::string chain_of(const Node& sink) {
  std::string chain;
  for (const Node* node = &sink; node != nullptr;
       node = node->inputs().empty() ? nullptr : &node->input()) {
    chain += (chain.empty() ? "'" : " <- '") + std::string(node->op()) + "'";
  }
  return chain;
}

}  // namespace cohort::data
