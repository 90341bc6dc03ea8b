// SPDX-License-Identifier: Apache-2.0
// Stacks elements into preallocated memory.
#pragma once

#include <cstdint>
#include <vector>

#include "cohort/data/element.h"

namespace cohort::data {

// Used only from one stage.
class BatchBuilder {
 public:
  explicit BatchBuilder(std::int64_t count_max) : count_max_(count_max) {}
  // invalid_argument if a field's dtype or shape differs from the first element's; then the element
  // is not added.
  void add(const Fields& element);
  std::int64_t size() const { return size_; }
  Fields take() &&;

 private:
  void begin(const Fields& element);
  void check(const Fields& element) const;
  void grow();

  std::int64_t count_max_;
  std::int64_t size_ = 0;
  std::int64_t capacity_ = 0;
  std::vector<TensorSpec> rows_;  // of the first element's fields
  Fields batch_;                  // the fields of numbers; undefined tensors for strings
  std::vector<Fields> strings_;   // the rows of each field of strings
};

// Concatenates batches; invalid_argument if their rows differ in dtype or shape.
Fields concatenated(std::vector<Fields> batches);

}  // namespace cohort::data
