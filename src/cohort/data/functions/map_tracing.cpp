// SPDX-License-Identifier: Apache-2.0
#include <c10/core/GradMode.h>

#include <iterator>
#include <utility>

#include "cohort/core/error.h"
#include "cohort/data/functions/map_function.h"
#include "cohort/data/graph/spec_inference.h"
#include "cohort/data/string_fields.h"
#include "cohort/function/trace.h"

namespace cohort::data {
namespace {

Bytes trace_for(const MapFunction& fn, const Nest& structure, const std::vector<Fields>& examples) {
  std::vector<Nest> structures;
  const auto body = [&](const std::vector<at::Tensor>& fields) {
    const c10::NoGradGuard no_grad;
    MapFunction::Result result = fn.call(structure, fields, 0);
    structures.push_back(result.structure);
    return std::move(result.fields);
  };
  for (const at::Tensor& field : examples[0]) {
    COHORT_CHECK(!StringTensor::is(field), ErrorCode::invalid_argument, "[data.map] expected '",
                 fn.name(), "' to take tensors of numbers, got ", describe(specs_of(examples[0])),
                 "; strings cannot be traced: ", kStringRemedy,
                 ", or ship it with Function::registered(name)");
  }
  function::TraceOptions options;
  options.name = fn.name();
  options.variable_of = [](const void*) -> const function::TracedVariable* { return nullptr; };
  const Fields other = examples.size() > 1 ? examples[1] : with_other_values(examples[0]);
  function::Traced traced = function::trace(examples[0], other, body, options);
  for (const Nest& other_structure : structures) {
    Nest::check_same_structure(structures.front(), other_structure,
                               "the result of '" + fn.name() + "'");
  }
  COHORT_CHECK(
      traced.captured_inputs.empty() && traced.info.variables.empty(), ErrorCode::invalid_argument,
      "[data.map] expected '", fn.name(),
      "' to depend on its element alone, got one that reads a variable or a hyperparameter; "
      "use it in the step instead");
  FrozenTensors::note(std::move(traced.frozen));
  return std::move(traced.bytes);
}

thread_local FrozenTensors* frozen_here = nullptr;

}  // namespace

FrozenTensors::FrozenTensors() : outer_(std::exchange(frozen_here, this)) {}
FrozenTensors::~FrozenTensors() { frozen_here = outer_; }

void FrozenTensors::note(std::vector<function::FrozenTensor> tensors) {
  if (frozen_here == nullptr) return;
  std::move(tensors.begin(), tensors.end(), std::back_inserter(frozen_here->tensors_));
}

Bytes trace_program(const MapFunction& fn, const Nest& structure, const Fields& element) {
  return trace_for(fn, structure, {element});
}

std::vector<Bytes> trace_programs(const MapFunction& fn, const Node& input) {
  std::vector<Bytes> programs;
  try {
    const std::vector<Fields> examples = draw_examples(input, Purpose::preview, {});
    programs.push_back(trace_for(fn, input.structure(), examples));
    if (specs_of(examples[0]) == input.spec().fields) return programs;
    const std::vector<Fields> short_ones = draw_examples(input, Purpose::short_preview, {});
    if (specs_of(short_ones[0]) == specs_of(examples[0])) return programs;
    programs.push_back(trace_for(fn, input.structure(), short_ones));
  } catch (...) {
    throw current_error().during("tracing " + map_function_named(fn.name()) +
                                 " to ship its pipeline");
  }
  return programs;
}

}  // namespace cohort::data
