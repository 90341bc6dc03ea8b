// SPDX-License-Identifier: Apache-2.0
// The function of a map: the user's C++, a function registered by name, or deserialized programs.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cohort/data/functions/call_scope.h"
#include "cohort/data/graph/attribute_reader.h"
#include "cohort/data/graph/node.h"
#include "cohort/function/frozen_tensor.h"
#include "cohort/function/prepared_program.h"

namespace cohort::data {

class ProgramSupply;  // program_supply.h

// Thread-safe; the user's C++ is called without a lock, in the pipeline's threads.
class MapFunction {
 public:
  struct Result {
    Fields fields;
    Nest structure;  // as ElementSpec::structure
  };

  virtual ~MapFunction() = default;
  virtual const std::string& name() const = 0;
  // `structure` is the element's. `seed` seeds the random ops of programs; C++ code draws from the
  // generator of the thread (CallScope). A deserialized function may wait for a missing program
  // (ProgramSupply).
  virtual Result call(const Nest& structure, const Fields& fields, std::uint64_t seed) const = 0;
  // Serializes it as the function of `map`, traced for the elements that the input of `map` yields.
  // Throws if it cannot be traced.
  virtual Attributes attributes(const Node& map) const = 0;
  // True for C++ of this process.
  virtual bool can_be_traced() const { return false; }
  // False for programs, whose random numbers follow from the seeds of their calls alone.
  virtual bool is_code() const { return true; }
};

// For messages: "map function 'fold'", or "a map function" if the program has given no name.
std::string map_function_named(const std::string& name);
// The random numbers of a running op that calls `function`.
CallRandom random_of(const MapFunction& function, const Node& op, const StageContext& context);

// The arguments for a function of `arity` parameters. A single parameter takes the whole element;
// otherwise each takes an item of a tuple or a field. invalid_argument, naming the function, if the
// numbers differ.
std::vector<Nest> arguments_of(const Nest& structure, const Fields& fields, std::size_t arity,
                               const std::string& name);

// invalid_argument for a function without parameters.
std::shared_ptr<const MapFunction> local_function(Function fn);
std::shared_ptr<const MapFunction> read_map_function(AttributeReader& attributes);

// Gives a deserialized function the programs that it lacks. While a graph is read, it is one of the
// op's attributes; it is never serialized. Thread-safe.
class ProgramSource final : public Handle {
 public:
  // `function` is the function's name in `supply`.
  ProgramSource(std::shared_ptr<ProgramSupply> supply, std::string function)
      : supply_(std::move(supply)), function_(std::move(function)) {}
  std::string_view handle_kind() const override { return "source of programs"; }
  // For a dataset function: the source of the op number `step` of its graph.
  std::shared_ptr<ProgramSource> inside(std::size_t step) const {
    return std::make_shared<ProgramSource>(supply_, function_ + "." + std::to_string(step));
  }
  // Like ProgramSupply::program_for(). Returns null before ProgramSupply::start().
  std::shared_ptr<const function::PreparedProgram> program_for(const Fields& element,
                                                               const std::string& name) const;

 private:
  const std::shared_ptr<ProgramSupply> supply_;  // shared with the pipeline
  const std::string function_;
};
// Whether ops of this kind have a function as an attribute.
bool has_function(std::string_view op);
// Adds `source` to the attributes of such an op.
void add_source(std::string_view op, const std::shared_ptr<ProgramSource>& source,
                Attributes& attributes);
// The source among the attributes, or null.
std::shared_ptr<ProgramSource> source_in(AttributeReader& attributes);

// Whether the program was traced for elements of these specs.
bool takes(const function::ProgramInfo& info, const Fields& fields);

// Traces the function for the elements that `input` yields: one program, and another one for the
// last, short batch if its size is known and differs.
std::vector<Bytes> trace_programs(const MapFunction& fn, const Node& input);
// Traces the function for elements with the specs of `element`.
Bytes trace_program(const MapFunction& fn, const Nest& structure, const Fields& element);

// While it exists, collects the tensors that traces of map functions on this thread store as
// constants. Used from one thread.
class FrozenTensors {
 public:
  FrozenTensors();
  ~FrozenTensors();
  FrozenTensors(const FrozenTensors&) = delete;
  FrozenTensors& operator=(const FrozenTensors&) = delete;
  // The tensors collected since the last call.
  std::vector<function::FrozenTensor> take() { return std::exchange(tensors_, {}); }
  // Adds tensors to the innermost FrozenTensors of this thread, if there is one.
  static void note(std::vector<function::FrozenTensor> tensors);

 private:
  FrozenTensors* const outer_;
  std::vector<function::FrozenTensor> tensors_;
};

}  // namespace cohort::data
