// SPDX-License-Identifier: Apache-2.0
// Ops whose parallel calls may end in any order.
#pragma once

#include <cstdint>

#include "cohort/data/dataset.h"
#include "cohort/data/internal/attribute_reader.h"

namespace cohort::data {

// An op with MapOptions::num_parallel_calls, or the like.
class ReorderingOp {
 public:
  // Whether its elements may come in another order when it runs again; `deterministic` is the
  // dataset's option, for an op that has none of its own. Runs nothing.
  bool may_reorder(bool deterministic) const {
    return num_parallel_calls_ != 0 && !deterministic_.value_or(deterministic);
  }

 protected:
  ReorderingOp(std::int64_t num_parallel_calls, Determinism deterministic)
      : num_parallel_calls_(num_parallel_calls), deterministic_(deterministic) {}
  ~ReorderingOp() = default;

  // Those of the two that are not as by default.
  void add_parallel_attributes(Attributes& all) const {
    if (num_parallel_calls_ != 0) all.emplace("num_parallel_calls", num_parallel_calls_);
    if (deterministic_) all.emplace("deterministic", *deterministic_);
  }

 private:
  std::int64_t num_parallel_calls_;
  Determinism deterministic_;
};

// What add_parallel_attributes() wrote.
template <class Options>
void read_parallel_attributes(AttributeReader& attributes, Options& options) {
  if (attributes.has("num_parallel_calls")) {
    options.num_parallel_calls = attributes.integer("num_parallel_calls");
  }
  if (attributes.has("deterministic")) options.deterministic = attributes.boolean("deterministic");
}

}  // namespace cohort::data
