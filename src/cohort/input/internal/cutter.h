// SPDX-License-Identifier: Apache-2.0
// How the batches of a pipeline become the mini-batches of replicas.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "cohort/core/bytes.h"
#include "cohort/data/element.h"
#include "cohort/data/iterator.h"

namespace cohort::input {

// Used from one thread at a time.
class Cutter {
 public:
  virtual ~Cutter() = default;
  // Draws from `batches` as it needs; false at the end.
  virtual bool next(ElementSource& batches, Fields& fields) = 0;
  // What was drawn and is not cut yet, or cut and not handed out. Together with index() the
  // position.
  virtual std::vector<Fields> rest() const = 0;
  virtual std::uint64_t index() const { return 0; }
  virtual void restore(std::vector<Fields> rest, std::uint64_t index) = 0;
};

// Every batch is one mini-batch.
std::unique_ptr<Cutter> whole_batches();
// Each batch in `parts` parts, of which those of the numbers `own` are handed out.
std::unique_ptr<Cutter> split_batches(std::int64_t parts, std::vector<std::int64_t> own);
// The stream of rows anew, in batches of `sizes`, cyclically. `spec` is of the batches.
std::unique_ptr<Cutter> sized_batches(std::vector<std::int64_t> sizes, ElementSpec spec);

}  // namespace cohort::input
