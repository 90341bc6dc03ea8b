// SPDX-License-Identifier: Apache-2.0
// The dtype and shape of a tensor, as far as they are known (tf.TensorSpec).
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "cohort/core/export.h"

namespace at {
class Tensor;
}

namespace cohort {

// The dtype of byte strings (StringTensor), for which LibTorch has none.
inline constexpr at::ScalarType kString = at::ScalarType::Undefined;

// A value type. A size of -1 is unknown. If `sizes` is nullopt, the rank is unknown too.
struct COHORT_API TensorSpec {
  at::ScalarType dtype = at::ScalarType::Float;
  std::optional<std::vector<std::int64_t>> sizes;

  static TensorSpec of(const at::Tensor& tensor);
  // Whether every size is known.
  bool is_static() const;
  // Whether every tensor that `other` describes also fits this spec.
  bool accepts(const TensorSpec& other) const;
  // The number of elements and of bytes. Throw invalid_argument if a size is unknown, and
  // byte_count() also for strings.
  std::int64_t element_count() const;
  std::int64_t byte_count() const;
  // "float32[64, 784]", "int64[?]", "uint8[...]".
  std::string to_string() const;
  friend std::ostream& operator<<(std::ostream& out, const TensorSpec& spec) {
    return out << spec.to_string();
  }

  bool operator==(const TensorSpec&) const = default;
};

// "float32", "int64", "bool", … as tf names them.
COHORT_API std::string dtype_name(at::ScalarType dtype);

}  // namespace cohort
