// SPDX-License-Identifier: Apache-2.0
// Ops whose parallel calls may end in any order.
#pragma once

namespace cohort::data {

// An op with MapOptions::num_parallel_calls, or the like.
class ReorderingOp {
 public:
  // Whether its elements may come in another order when it runs again; `deterministic` is the
  // dataset's option, for an op that has none of its own. Runs nothing.
  virtual bool may_reorder(bool deterministic) const = 0;

 protected:
  ~ReorderingOp() = default;
};

}  // namespace cohort::data
