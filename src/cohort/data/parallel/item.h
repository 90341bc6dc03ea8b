// SPDX-License-Identifier: Apache-2.0
// An element, or the error that replaces it, in a buffer between threads.
#pragma once

#include <cstddef>
#include <exception>

#include "cohort/core/bytes.h"
#include "cohort/data/element.h"

namespace cohort::data {

struct Item {
  Fields fields;
  std::exception_ptr error = nullptr;

  // Memory size of the element's values.
  std::size_t byte_count() const;
  // Returns the element, or throws the error.
  Fields take() &&;
};

// A saved error keeps its code, cause, message and context.
void write_item(ByteWriter& writer, const Item& item);
Item read_item(ByteReader& reader);

}  // namespace cohort::data
