// SPDX-License-Identifier: Apache-2.0
// What a buffer between threads holds: an element, or the error in its place.
#pragma once

#include <cstddef>
#include <exception>

#include "cohort/core/bytes.h"
#include "cohort/data/element.h"

namespace cohort::data {

struct Item {
  Fields fields;
  std::exception_ptr error = nullptr;

  // Memory of the element's values.
  std::size_t byte_count() const;
  // Hands the element on, or throws its error.
  Fields take() &&;
};

// A saved error keeps its code, cause, message and context.
void write_item(ByteWriter& writer, const Item& item);
Item read_item(ByteReader& reader);

}  // namespace cohort::data
