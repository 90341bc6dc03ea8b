// SPDX-License-Identifier: Apache-2.0
#include "cohort/data/graph/graph_template.h"

#include <algorithm>
#include <utility>

#include "cohort/core/error.h"
#include "cohort/data/functions/map_function.h"
#include "cohort/data/graph/attribute_reader.h"
#include "cohort/data/graph/graph_probes.h"
#include "cohort/data/graph/nest_codec.h"
#include "cohort/data/graph/spec_inference.h"
#include "cohort/data/ops/op_registry.h"

namespace cohort::data {
namespace {

constexpr const char* kSpec = "spec";  // an attribute of ops with a function
constexpr const char* kPrograms = "programs";

[[noreturn]] void refuse(const Node& node, const std::string& what) {
  internal::throw_error(
      ErrorCode::failed_precondition,
      "[data.serialize] expected a dataset function whose datasets differ in the values of their "
      "elements alone, got one whose op '",
      node.op(), "' has ", what,
      "; pass the element's own tensors to a source and compute with them in map(), or run the "
      "pipeline where it was built");
}

// nullopt if they cannot be computed: tracing a map may need elements, which a made-up file name
// does not provide.
std::optional<Attributes> attributes_if_any(const Node& node) {
  try {
    return node.attributes();
  } catch (const Error&) {
    return std::nullopt;
  }
}

// The common spec of `values`. The spec of a dataset function may depend on the sizes of its
// element.
std::optional<Nest> common_spec(const std::vector<Nest>& values) {
  try {
    ElementSpec common = spec_of(values[0]);
    for (const Nest& value : values) common = common.common_with(spec_of(value));
    return nest_of(common);
  } catch (const Error&) {
    return std::nullopt;
  }
}

// Traces the function of these ops for each spec that their elements have. nullopt if, for one
// spec, the programs of the ops differ: then the function depends on the outer element.
std::optional<Nest> common_programs(const std::vector<const Node*>& nodes) {
  std::vector<std::vector<TensorSpec>> known;
  Nest::Items programs;
  try {
    for (const Node* of_element : nodes) {
      const Fields element = draw_examples(of_element->input(), Purpose::preview, {}).front();
      const std::vector<TensorSpec> specs = specs_of(element);
      if (std::ranges::find(known, specs) != known.end()) continue;
      known.push_back(specs);
      std::optional<Bytes> common;
      for (const Node* node : nodes) {
        Bytes program = trace_program(*node->map_function(), node->input().structure(), element);
        if (common && *common != program) return std::nullopt;
        common = std::move(program);
      }
      programs.emplace_back(
          std::string(reinterpret_cast<const char*>(common->data()), common->size()));
    }
  } catch (const Error&) {
    return std::nullopt;
  }
  return Nest::list(std::move(programs));
}

// Merges the attributes of node `position` of all probes into one map with holes.
Nest common_attributes(const std::vector<GraphProbe>& probes, std::size_t position) {
  const Node& first = *probes[0].nodes[position];
  std::vector<Attributes> attributes{first.attributes()};
  std::vector<const Fields*> elements{&probes[0].element};
  std::vector<const Node*> nodes{&first};
  for (std::size_t i = 1; i < probes.size(); ++i) {
    const std::optional<Attributes> found = attributes_if_any(*probes[i].nodes[position]);
    if (!found) continue;
    attributes.push_back(*found);
    elements.push_back(&probes[i].element);
    nodes.push_back(probes[i].nodes[position].get());
  }
  if (attributes.size() < 2) {
    refuse(first,
           "attributes that can be found for no made-up element (a map function that needs "
           "elements of a file to be traced)");
  }
  Nest::Map common;
  for (const auto& [name, unused] : attributes[0]) {
    std::vector<Nest> values;
    for (const Attributes& all : attributes) {
      const auto found = all.find(name);
      if (found != all.end()) values.push_back(found->second);
    }
    std::optional<Nest> value;
    if (values.size() == attributes.size()) value = common_value(values, elements);
    const bool has_programs = first.map_function() != nullptr;
    const bool has_function = has_programs || first.dataset_function() != nullptr;
    if (!value && has_function && name == kSpec) value = common_spec(values);
    if (!value && has_programs && name == kPrograms) value = common_programs(nodes);
    if (!value)
      refuse(first, "an attribute '" + name + "' that depends on the element in another way");
    common.emplace(name, std::move(*value));
  }
  return Nest::map(std::move(common));
}

void check_same_ops(const std::vector<GraphProbe>& probes) {
  const GraphProbe& first = probes[0];
  for (const GraphProbe& other : probes) {
    if (other.nodes.size() != first.nodes.size() || other.inputs != first.inputs) {
      refuse(*first.nodes.back(), "other ops before it for another element");
    }
    for (std::size_t i = 0; i < first.nodes.size(); ++i) {
      if (other.nodes[i]->op() != first.nodes[i]->op()) {
        refuse(*first.nodes[i], "another op, '" + std::string(other.nodes[i]->op()) +
                                    "', in its place for another element");
      }
    }
  }
}

Nest filled(const Nest& nest, const Fields& element) {
  if (is_hole(nest)) return filled_hole(nest, element);
  if (nest.is_leaf()) return nest;
  if (nest.kind() == Nest::Kind::map) {
    Nest::Map entries;
    for (const auto& [key, value] : nest.entries()) {
      entries.emplace(key_in_graph(key), filled(value, element));
    }
    return Nest::map(std::move(entries));
  }
  Nest::Items items;
  for (const Nest& item : nest.items()) items.push_back(filled(item, element));
  return nest.kind() == Nest::Kind::list ? Nest::list(std::move(items))
                                         : Nest::tuple(std::move(items));
}

}  // namespace

GraphTemplate GraphTemplate::of(const DatasetFunction& function, const Node& input) {
  const std::vector<GraphProbe> probes = probe_graphs(function, input);
  check_same_ops(probes);
  GraphTemplate made;
  for (std::size_t i = 0; i < probes[0].nodes.size(); ++i) {
    made.steps_.push_back({.op = std::string(probes[0].nodes[i]->op()),
                           .inputs = probes[0].inputs[i],
                           .attributes = common_attributes(probes, i)});
  }
  return made;
}

GraphTemplate GraphTemplate::read(const Nest& wire, const std::shared_ptr<ProgramSource>& source) {
  GraphTemplate made;
  for (const Nest& step : wire.items()) {
    if (step.items().size() != 3) fail_template("[op, inputs, attributes]");
    Step& read = made.steps_.emplace_back();
    read.op = step.items()[0].text();
    for (const Nest& index : step.items()[1].items()) {
      if (index.integer() < 0 ||
          index.integer() >= static_cast<std::int64_t>(made.steps_.size()) - 1) {
        fail_template("the number of an earlier op");
      }
      read.inputs.push_back(static_cast<std::size_t>(index.integer()));
    }
    read.attributes = step.items()[2];
    if (source) read.source = source->inside(made.steps_.size() - 1);
    if (read.attributes.kind() != Nest::Kind::map) fail_template("a map of attributes");
  }
  made.check();
  return made;
}

void GraphTemplate::check() const {
  if (steps_.empty()) fail_template("at least one op");
  std::vector<std::size_t> depths;
  std::vector<std::size_t> stages;
  for (const Step& step : steps_) {
    if (!known_op(step.op).takes(step.inputs.size())) {
      fail_template("the op's number of inputs");
    }
    std::size_t depth = 1;
    std::size_t count = 1;
    for (const std::size_t input : step.inputs) {
      depth = std::max(depth, depths[input] + 1);
      count = std::min(count + stages[input], kStagesMax + 1);
    }
    if (depth > kOpsInARowMax || count > kStagesMax)
      fail_template("at most 500 ops in a row, 100000 stages");
    depths.push_back(depth);
    stages.push_back(count);
  }
}

Nest GraphTemplate::to_nest() const {
  Nest::Items steps;
  for (const Step& step : steps_) {
    Nest::Items inputs;
    for (const std::size_t input : step.inputs)
      inputs.emplace_back(static_cast<std::int64_t>(input));
    steps.push_back(Nest::list({step.op, Nest::list(std::move(inputs)), step.attributes}));
  }
  return Nest::list(std::move(steps));
}

NodePtr GraphTemplate::graph_of(const Fields& element) const {
  std::vector<NodePtr> nodes;
  for (const Step& step : steps_) {
    std::vector<NodePtr> inputs;
    for (const std::size_t input : step.inputs) inputs.push_back(nodes[input]);
    Attributes attributes = filled(step.attributes, element).entries();
    if (step.source) add_source(step.op, step.source, attributes);
    AttributeReader reader(step.op, attributes);
    nodes.push_back(known_op(step.op).make({std::move(inputs), reader}));
    reader.expect_all_read();
  }
  return nodes.back();
}

}  // namespace cohort::data
