// SPDX-License-Identifier: Apache-2.0
#include "cohort/data/dataset_traits.h"

#include <algorithm>
#include <array>
#include <set>
#include <string_view>
#include <vector>

#include "cohort/core/bytes.h"
#include "cohort/core/error.h"
#include "cohort/core/log.h"
#include "cohort/core/string_tensor.h"
#include "cohort/data/field_kernels/fingerprint.h"
#include "cohort/data/graph/graph_codec.h"
#include "cohort/data/graph/graph_probes.h"
#include "cohort/data/graph/nest_codec.h"
#include "cohort/data/graph/node.h"
#include "cohort/data/graph/spec_inference.h"
#include "cohort/data/ops/op_registry.h"

namespace cohort::data {
namespace {

bool cannot_fail(const Node& node) {
  if (known_op(node.op()).can_fail) return false;
  if (node.op() == "batch" && !is_static(node.input().spec())) return false;
  return std::ranges::all_of(node.inputs(),
                             [](const NodePtr& input) { return cannot_fail(*input); });
}

bool drops_remainder(const Node& node) {
  if (node.op() != "batch" && node.op() != "parallel_batch") return false;
  const Attributes attributes = node.attributes();
  const auto found = attributes.find("drop_remainder");
  return found != attributes.end() && found->second.boolean();
}

bool guesses_sizes(const Node& node) {
  if (node.op() == "map") return !node.has_given_spec();
  if (node.dataset_function() != nullptr) return true;
  if (drops_remainder(node)) return false;
  return std::ranges::any_of(node.inputs(),
                             [](const NodePtr& input) { return guesses_sizes(*input); });
}

// The ops of the datasets that a function makes, of examples; none where it cannot be called here,
// as for files that only workers have.
std::vector<NodePtr> made_by(const DatasetFunction& function, const Node& input) {
  std::vector<NodePtr> nodes;
  try {
    for (GraphProbe& probe : probe_graphs(function, input))
      nodes.insert(nodes.end(), probe.nodes.begin(), probe.nodes.end());
  } catch (...) {
    log_debug("the order of the datasets of an op is not known: ", current_error().what());
  }
  return nodes;
}

// `seen` owns the nodes: another one must not get the address of one that was made for an example.
std::string first_of(const NodePtr& start, bool is_deterministic, std::set<NodePtr>& seen) {
  if (!seen.insert(start).second) return "";
  const Node& node = *start;
  std::vector<NodePtr> before(node.inputs().begin(), node.inputs().end());
  if (node.dataset_function() != nullptr) {
    const std::vector<NodePtr> made = made_by(*node.dataset_function(), node.input());
    before.insert(before.end(), made.begin(), made.end());
  }
  for (const NodePtr& one : before) {
    std::string found = first_of(one, is_deterministic, seen);
    if (!found.empty()) return found;
  }
  if (!node.may_reorder(is_deterministic)) return "";
  return "'" + std::string(node.op()) + "' with parallel calls and deterministic = false";
}

bool is_seeded_shuffle(const NodePtr& node) {
  if (node->op() != "shuffle") return false;
  const Attributes attributes = node->attributes();
  return !attributes.at("seed").is_null() && attributes.at("reshuffle_each_iteration").boolean();
}

// Attributes that change no element, whichever op has them.
constexpr std::array<std::string_view, 3> kWithoutEffect{"buffer_bytes", "deterministic",
                                                         "num_parallel_calls"};

std::uint64_t hash_of_bytes(const void* bytes, std::size_t count) {
  return fingerprint64({static_cast<const char*>(bytes), count});
}

// Replaces a tensor by its dtype, its sizes and a hash of its values, so that no copy is made of
// large ones.
Nest without_values(const Nest& leaf) {
  if (!leaf.is_tensor() || StringTensor::is(leaf.tensor())) return leaf;
  const at::Tensor values = leaf.tensor().contiguous();
  const std::uint64_t hash = hash_of_bytes(values.data_ptr(), values.nbytes());
  return Nest::list({Nest(static_cast<std::int64_t>(values.scalar_type())),
                     Nest::list(Nest::Items(values.sizes().begin(), values.sizes().end())),
                     Nest(static_cast<std::int64_t>(hash))});
}

}  // namespace

bool cannot_fail(const Dataset& dataset) { return cannot_fail(*dataset.node()); }
bool guesses_sizes(const Dataset& dataset) { return guesses_sizes(*dataset.node()); }

std::string why_order_may_change(const Dataset& dataset) {
  std::set<NodePtr> seen;
  return first_of(dataset.node(), dataset.options().deterministic.value_or(true), seen);
}

void check_order_is_fixed(const Dataset& dataset, std::string_view call,
                          std::string_view remedy_call) {
  const std::string why = why_order_may_change(dataset);
  COHORT_CHECK(why.empty(), ErrorCode::invalid_argument, "[", call,
               "] expected a dataset that yields its elements in one order on all workers, got ",
               why,
               ": some elements would be used twice and others never; set deterministic to true, "
               "or shard() before it in ",
               remedy_call);
}

bool is_reshuffled_by_seed(const Dataset& dataset) {
  const std::vector<NodePtr> ops = ops_of(dataset.node());
  return std::ranges::any_of(ops, is_seeded_shuffle);
}

std::uint64_t Node::fingerprint() const {
  fingerprint_once_.call([this] {
    Attributes attributes = identity();
    for (const std::string_view name : kWithoutEffect) attributes.erase(std::string(name));
    ByteWriter writer;
    writer.text(op_);
    writer.varint(inputs_.size());
    for (const NodePtr& input : inputs_) writer.u64(input->fingerprint());
    write_nest(writer, Nest::map(std::move(attributes)).map_leaves(without_values));
    fingerprint_ = hash_of_bytes(writer.bytes().data(), writer.bytes().size());
  });
  return fingerprint_;
}

std::uint64_t graph_fingerprint(const Dataset& dataset) { return dataset.node()->fingerprint(); }

}  // namespace cohort::data
