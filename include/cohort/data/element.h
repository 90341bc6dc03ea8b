// SPDX-License-Identifier: Apache-2.0
// An element of a dataset is a nest of tensors. Its leaves are called fields; they are stored as a
// vector, in flatten order.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "cohort/core/bytes.h"
#include "cohort/core/export.h"
#include "cohort/core/nest.h"
#include "cohort/core/tensor_spec.h"

namespace cohort {

using Fields = std::vector<at::Tensor>;

// The structure, dtypes and known sizes that all elements have (tf.data's element_spec). A value
// type.
struct COHORT_API ElementSpec {
  Nest structure;  // leaf i in flatten order is the integer i
  std::vector<TensorSpec> fields;

  static ElementSpec of(const Nest& element);                // exact specs
  static ElementSpec tuple(std::vector<TensorSpec> fields);  // one field: a leaf, no tuple
  Nest pack(const Fields& values) const;
  // A spec that fits the elements of both: sizes that differ become unknown. Throws
  // invalid_argument if the structures or dtypes differ.
  ElementSpec common_with(const ElementSpec& other) const;
  std::string to_string() const;  // "(uint8[28, 28], uint8[])"
  friend std::ostream& operator<<(std::ostream& out, const ElementSpec& spec) {
    return out << spec.to_string();
  }
};

namespace data {
// The number of examples in an element: the size of the first dimension of its first field, which
// is the number of rows of a batch; 1 for a scalar, and for an element without fields.
inline std::uint64_t num_rows(const Fields& element) {
  const bool has_rows = !element.empty() && element.front().dim() > 0;
  return has_rows ? static_cast<std::uint64_t>(element.front().size(0)) : 1;
}

// Converts the fields of one element to bytes and back, for saved positions
// (docs/formats/pipeline.md). Tensors must be dense and in host memory. read_fields() throws
// data_loss if write_fields() did not write the bytes.
COHORT_API void write_fields(ByteWriter& writer, const Fields& fields);
COHORT_API Fields read_fields(ByteReader& reader);
}  // namespace data

namespace data {
// One element or none, with a known spec (tf.experimental.Optional). A value type; copies share
// tensors.
class COHORT_API Optional {
 public:
  static Optional from_value(Nest value);
  static Optional empty(ElementSpec element_spec);

  bool has_value() const { return value_.has_value(); }
  // Throws invalid_argument if it is empty.
  const Nest& get_value() const;
  const ElementSpec& element_spec() const { return spec_; }
  // Whether the structures and dtypes are equal, and all sizes that both specs know.
  bool is_compatible_with(const ElementSpec& other) const;

 private:
  Optional(ElementSpec spec, std::optional<Nest> value)
      : spec_(std::move(spec)), value_(std::move(value)) {}
  ElementSpec spec_;
  std::optional<Nest> value_;
};
}  // namespace data

}  // namespace cohort
