// SPDX-License-Identifier: Apache-2.0
// Makes the mini-batches of replicas from the batches of a pipeline.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "cohort/core/bytes.h"
#include "cohort/data/element.h"
#include "cohort/data/iterator.h"

namespace cohort::input {

// Used from one thread at a time.
class Rebatcher {
 public:
  virtual ~Rebatcher() = default;
  // Draws from `batches` as needed; false at the end.
  virtual bool next(data::ElementSource& batches, Fields& fields) = 0;
  // The elements drawn and not returned yet. rest() and index() are the position.
  virtual std::vector<Fields> rest() const = 0;
  virtual std::uint64_t index() const { return 0; }
  virtual void restore(std::vector<Fields> rest, std::uint64_t index) = 0;
};

// Every batch is one mini-batch.
std::unique_ptr<Rebatcher> whole_batches();
// Splits each batch into `parts` parts and returns those with the numbers `own`.
std::unique_ptr<Rebatcher> split_batches(std::int64_t parts, std::vector<std::int64_t> own);
// Regroups the rows into batches of `sizes`, cyclically. `spec` is that of the batches.
std::unique_ptr<Rebatcher> sized_batches(std::vector<std::int64_t> sizes, ElementSpec spec);

}  // namespace cohort::input
