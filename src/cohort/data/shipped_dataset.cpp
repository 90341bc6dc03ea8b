// SPDX-License-Identifier: Apache-2.0
#include "cohort/data/shipped_dataset.h"

#include <c10/core/GradMode.h>

#include <algorithm>
#include <charconv>
#include <iterator>
#include <optional>
#include <utility>

#include "cohort/core/error.h"
#include "cohort/data/functions/map_function.h"
#include "cohort/data/graph/graph_codec.h"
#include "cohort/data/graph/graph_probes.h"
#include "cohort/data/graph/spec_inference.h"

namespace cohort::data {
namespace {

[[noreturn]] void fail_function(const std::string& function) {
  internal::throw_error(ErrorCode::data_loss,
                        "[data.trace] expected a function of the pipeline, got '",
                        function.substr(0, 64), "'; run the same release of Cohort on every task");
}

// Parses "4.0" to 4 and 0.
std::vector<std::size_t> numbers_of(const std::string& function) {
  std::vector<std::size_t> numbers;
  const char* next = function.data();
  const char* const end = next + function.size();
  while (true) {
    std::size_t number = 0;
    const auto parsed = std::from_chars(next, end, number);
    if (parsed.ec != std::errc()) fail_function(function);
    numbers.push_back(number);
    if (parsed.ptr == end) return numbers;
    if (*parsed.ptr != '.') fail_function(function);
    next = parsed.ptr + 1;
  }
}

}  // namespace

ShippedDataset::ShippedDataset(Dataset dataset, GraphBytes bytes, Frozen frozen)
    : dataset_(std::move(dataset)),
      bytes_(std::move(bytes)),
      mode_(function::TracingMode::current()),
      frozen_(std::move(frozen)) {}

const ShippedDataset::Nodes& ShippedDataset::nodes_of(const std::string& function) const {
  const auto known = nodes_.find(function);
  if (known != nodes_.end()) return known->second;
  Nodes nodes{dataset_.node()};
  const std::vector<std::size_t> numbers = numbers_of(function);
  for (std::size_t level = 0; level < numbers.size(); ++level) {
    std::vector<Nodes> graphs;
    if (level == 0) {
      graphs.push_back(ops_of(nodes.front()));
    } else {
      const DatasetFunction* of_element = nodes.front()->dataset_function();
      if (of_element == nullptr) fail_function(function);
      for (GraphProbe& probe : probe_graphs(*of_element, nodes.front()->input()))
        graphs.push_back(std::move(probe.nodes));
    }
    nodes.clear();
    for (const Nodes& graph : graphs) {
      if (numbers[level] >= graph.size()) fail_function(function);
      nodes.push_back(graph[numbers[level]]);
    }
  }
  const bool all_have_one = std::ranges::all_of(
      nodes, [](const NodePtr& node) { return node->map_function() != nullptr; });
  if (!all_have_one) fail_function(function);
  return nodes_.emplace(function, std::move(nodes)).first->second;
}

std::string ShippedDataset::name_of(const std::string& function) const {
  const Lock lock(mutex_);
  return nodes_of(function).front()->map_function()->name();
}

NodePtr ShippedDataset::op_of(const std::string& function) const {
  if (numbers_of(function).size() != 1) return nullptr;
  const std::vector<NodePtr> ops = ops_of(dataset_.node());
  const std::size_t number = numbers_of(function).front();
  return number < ops.size() ? ops[number] : nullptr;
}

bool ShippedDataset::has_same(const std::string& function, const ShippedDataset& other) const {
  if (this == &other) return true;
  const NodePtr own = op_of(function);
  const NodePtr others = other.op_of(function);
  if (own == nullptr || others == nullptr || own->op() != others->op()) return false;
  const MapFunction* fn = own->map_function();
  return fn != nullptr && fn == others->map_function() && mode_ == other.mode_ &&
         own->input().structure().structure() == others->input().structure().structure();
}

// All programs of a function must hold the same values of captured tensors.
void ShippedDataset::check_current(const std::string& function) const {
  const auto& frozen = frozen_.at(numbers_of(function).front());
  const bool is_current = std::ranges::all_of(
      frozen, [](const function::FrozenTensor& one) { return one.is_current(); });
  COHORT_CHECK(is_current, ErrorCode::failed_precondition,
               "[data.trace] expected captured tensors as they were when the pipeline was shipped, "
               "got one that was written to or replaced since, and an element of another shape "
               "needs another trace, which would see the new values; capture a clone()");
}

// Traces the function in each of `nodes`. For a function inside a dataset function these belong to
// different graphs; if their programs differ, they depend on the outer element, which is an error.
Bytes ShippedDataset::trace_alike(const Nodes& nodes, const Fields& element) const {
  std::optional<Bytes> program;
  for (const NodePtr& node : nodes) {
    const MapFunction& fn = *node->map_function();
    COHORT_CHECK(fn.can_be_traced(), ErrorCode::failed_precondition,
                 "[data.trace] expected a C++ function, got one that came as programs itself: ship "
                 "the dataset from the process that built it");
    Bytes traced = trace_program(fn, node->input().structure(), element);
    COHORT_CHECK(!program || *program == traced, ErrorCode::failed_precondition,
                 "[data.trace] expected a function that depends on its own element alone, got one "
                 "that reads the element of the dataset function around it on the host; hand that "
                 "to a source as a tensor, and compute with it");
    program = std::move(traced);
  }
  return std::move(*program);
}

Bytes ShippedDataset::trace(const std::string& function, const Fields& element) const {
  const Lock lock(mutex_);
  const Nodes* nodes = nullptr;
  try {
    nodes = &nodes_of(function);
    check_current(function);
  } catch (...) {
    throw current_error().because(ErrorCause::closure_input);
  }
  const Node& first = *nodes->front();
  const MapFunction& fn = *first.map_function();
  const std::string where =
      "tracing '" + fn.name() + "' for an element " + describe(specs_of(element));
  const function::TracingModeScope mode(mode_);
  Nest result;
  try {  // without gradients, as a running pipeline calls it
    const c10::NoGradGuard no_grad;
    result = fn.call(first.input().structure(), element, 0).structure;
  } catch (...) {
    throw current_error().because(ErrorCause::application);
  }
  try {
    if (first.op() == "map") {
      Nest::check_same_structure(first.structure(), result, "the result of '" + fn.name() + "'");
    }
    FrozenTensors frozen;
    Bytes program = trace_alike(*nodes, element);
    std::vector<function::FrozenTensor> added = frozen.take();
    auto& all = frozen_.at(numbers_of(function).front());
    std::move(added.begin(), added.end(), std::back_inserter(all));
    return program;
  } catch (...) {
    throw current_error().because(ErrorCause::closure_input).during(where);
  }
}

}  // namespace cohort::data
