// SPDX-License-Identifier: Apache-2.0
// What a map runs: the user's C++, a function registered by name, or programs that came over the
// wire.
#pragma once

#include <cstdint>
#include <memory>

#include "cohort/data/internal/attribute_reader.h"
#include "cohort/data/internal/node.h"

namespace cohort::data {

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
  // LibTorch's generator.
  virtual Result call(const Nest& structure, const Fields& fields, std::uint64_t seed) const = 0;
  // What ships it as the function of `map`: traced for the elements that its input yields. Throws
  // where that cannot be.
  virtual Attributes attributes(const Node& map) const = 0;
};

// The arguments for a function of `arity` parameters: a tuple is spread over them, one parameter
// takes the whole element. invalid_argument naming the function where they do not fit.
std::vector<Nest> arguments_of(const Nest& structure, const Fields& fields, std::size_t arity,
                               const std::string& name);

// invalid_argument where its parameters cannot take such elements.
std::shared_ptr<const MapFunction> local_function(Function fn);
std::shared_ptr<const MapFunction> read_map_function(AttributeReader& attributes);

// The function's programs, one for each element spec that `input` yields: full batches and a known
// remainder.
std::vector<Bytes> trace_programs(const MapFunction& fn, const Node& input);

}  // namespace cohort::data
