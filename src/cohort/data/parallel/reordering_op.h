// SPDX-License-Identifier: Apache-2.0
// Ops whose parallel calls may end in any order.
#pragma once

#include <cstdint>

#include "cohort/data/dataset.h"
#include "cohort/data/graph/attribute_reader.h"

namespace cohort::data {

// An op with MapOptions::num_parallel_calls or a similar option.
class ReorderingOp {
 public:
  // Whether another run may yield the elements in a different order. `deterministic` is the
  // dataset's option, for an op that has none of its own. Runs nothing.
  bool may_reorder(bool deterministic) const {
    return num_parallel_calls_ != 0 && !deterministic_.value_or(deterministic);
  }

 protected:
  ReorderingOp(std::int64_t num_parallel_calls, Determinism deterministic)
      : num_parallel_calls_(num_parallel_calls), deterministic_(deterministic) {}
  ~ReorderingOp() = default;

  // Adds those of the two attributes that differ from their defaults.
  void add_parallel_attributes(Attributes& all) const {
    if (num_parallel_calls_ != 0) all.emplace("num_parallel_calls", num_parallel_calls_);
    if (deterministic_) all.emplace("deterministic", *deterministic_);
  }

 private:
  std::int64_t num_parallel_calls_;
  Determinism deterministic_;
};

// Reads the attributes of add_parallel_attributes().
template <class Options>
void read_parallel_attributes(AttributeReader& attributes, Options& options) {
  if (attributes.has("num_parallel_calls")) {
    options.num_parallel_calls = attributes.integer("num_parallel_calls");
  }
  if (attributes.has("deterministic")) options.deterministic = attributes.boolean("deterministic");
}

}  // namespace cohort::data
