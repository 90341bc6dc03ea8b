// SPDX-License-Identifier: Apache-2.0
// Stacks elements into preallocated memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "cohort/data/element.h"
#include "cohort/data/graph/node.h"

namespace cohort::data {

// Used only from one stage.
class BatchBuilder {
 public:
  // `node` makes the elements; its structure names the fields in messages.
  BatchBuilder(std::int64_t count_max, const Node& node) : count_max_(count_max), node_(node) {}
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
  const Node& node_;
  std::int64_t size_ = 0;
  std::int64_t capacity_ = 0;
  std::vector<TensorSpec> rows_;  // of the first element's fields
  Fields batch_;                  // the fields of numbers; undefined tensors for strings
  std::vector<Fields> strings_;   // the rows of each field of strings
};

// Concatenates batches of elements of `node`; invalid_argument if their rows differ in dtype or
// shape.
Fields concatenated(std::vector<Fields> batches, const Node& node);

// Throws the invalid_argument of a batch whose elements have different dtypes or shapes. `first`
// and `other` describe field `field` of elements of `node`.
[[noreturn]] void fail_uneven(const Node& node, std::size_t field, const std::string& first,
                              const std::string& other, std::int64_t element);

}  // namespace cohort::data
