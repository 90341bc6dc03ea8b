// SPDX-License-Identifier: Apache-2.0
// What a map runs: the user's C++, a function registered by name, or programs that came over the
// wire.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cohort/data/internal/attribute_reader.h"
#include "cohort/data/internal/node.h"
#include "cohort/function/frozen_tensor.h"
#include "cohort/function/prepared_program.h"

namespace cohort::data {

class ProgramSupply;  // program_supply.h

// Thread-safe; C++ code of the user is called as it is, in the pipeline's thread.
class MapFunction {
 public:
  struct Result {
    Fields fields;
    Nest structure;  // as ElementSpec::structure
  };

  virtual ~MapFunction() = default;
  virtual const std::string& name() const = 0;
  // `structure` is the element's. `seed` feeds random ops of programs; C++ code draws from
  // LibTorch's generator. One that came as programs may wait for another (ProgramSupply).
  virtual Result call(const Nest& structure, const Fields& fields, std::uint64_t seed) const = 0;
  // What ships it as the function of `map`: traced for the elements that its input yields. Throws
  // where that cannot be.
  virtual Attributes attributes(const Node& map) const = 0;
  // Whether it is C++ code of this process, which can be traced.
  virtual bool can_be_traced() const { return false; }
};

// The arguments for a function of `arity` parameters: a tuple is spread over them, one parameter
// takes the whole element. invalid_argument naming the function where they do not fit.
std::vector<Nest> arguments_of(const Nest& structure, const Fields& fields, std::size_t arity,
                               const std::string& name);

// invalid_argument where its parameters cannot take such elements.
std::shared_ptr<const MapFunction> local_function(Function fn);
std::shared_ptr<const MapFunction> read_map_function(AttributeReader& attributes);

// An op that calls one for each element.
class HasMapFunction {
 public:
  virtual const MapFunction& map_function() const = 0;

 protected:
  ~HasMapFunction() = default;
};
// That of such an op; else null.
const MapFunction* map_function_of(const Node& node);

// Where a shipped function gets the programs that it lacks. It stands among the attributes of its
// op while a graph is read; bytes cannot hold one. Thread-safe.
class ProgramSource final : public Handle {
 public:
  // `function`: its name in the supply.
  ProgramSource(std::shared_ptr<ProgramSupply> supply, std::string function)
      : supply_(std::move(supply)), function_(std::move(function)) {}
  std::string_view handle_kind() const override { return "source of programs"; }
  // That of step `step` of this dataset function.
  std::shared_ptr<ProgramSource> inside(std::size_t step) const {
    return std::make_shared<ProgramSource>(supply_, function_ + "." + std::to_string(step));
  }
  // Null where nobody is asked now.
  std::shared_ptr<const function::PreparedProgram> program_for(const Fields& element,
                                                               const std::string& name) const;

 private:
  const std::shared_ptr<ProgramSupply> supply_;  // the pipeline's
  const std::string function_;
};
// Where the op has a function.
void add_source(std::string_view op, const std::shared_ptr<ProgramSource>& source,
                Attributes& attributes);
// Null where there is none.
std::shared_ptr<ProgramSource> source_in(AttributeReader& attributes);

// Whether the program was traced for elements of these specs.
bool takes(const function::ProgramInfo& info, const Fields& fields);

// The function's programs, one for each element spec that `input` yields: full batches and a known
// remainder.
std::vector<Bytes> trace_programs(const MapFunction& fn, const Node& input);
// That for elements of the specs of `element` alone.
Bytes trace_program(const MapFunction& fn, const Nest& structure, const Fields& element);

// While it lives, keeps what this thread's traces of such functions freeze. Used from one thread.
class FrozenTensors {
 public:
  FrozenTensors();
  ~FrozenTensors();
  FrozenTensors(const FrozenTensors&) = delete;
  FrozenTensors& operator=(const FrozenTensors&) = delete;
  // What came since the last call.
  std::vector<function::FrozenTensor> take() { return std::exchange(tensors_, {}); }
  // To the innermost one of this thread, where there is one.
  static void note(std::vector<function::FrozenTensor> tensors);

 private:
  FrozenTensors* const outer_;
  std::vector<function::FrozenTensor> tensors_;
};

}  // namespace cohort::data
