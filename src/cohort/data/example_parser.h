// SPDX-License-Identifier: Apache-2.0
// Parses serialized tf.train.Examples into tensors (tf.io.parse_example).
//
//   const ExampleParser parser({{"image", {.dtype = at::kFloat, .sizes = {28, 28}}},
//                               {"label", {.dtype = at::kLong}}});
//   Nest one = parser.parse(records);  // {image: float32[n, 28, 28], label: int64[n]}
//
// In a pipeline: Dataset::parse_example(), before or, faster, after batch().
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cohort/core/nest.h"
#include "cohort/core/string_tensor.h"
#include "cohort/data/element.h"

namespace cohort {

// The expected type of a feature. A value type.
struct COHORT_API FeatureSpec {
  at::ScalarType dtype = at::ScalarType::Float;  // float32, int64 or kString
  std::vector<std::int64_t> sizes = {};          // of the values of one example
  // A number, a string, or a tensor with as many values as `sizes`; nullopt: the feature is
  // required.
  std::optional<Nest> default_value = {};
  // The feature is a vector of any length; a missing feature has length 0. In a batch, vectors are
  // padded with 0 or "" to the longest. `sizes` and `default_value` are ignored.
  bool is_variable = false;
};
using FeatureSpecs = std::map<std::string, FeatureSpec>;

// Immutable. Thread-safe.
class COHORT_API ExampleParser {
 public:
  // invalid_argument, naming the feature, for an invalid spec.
  explicit ExampleParser(FeatureSpecs features);
  ~ExampleParser();

  // A map of the features: of one example for a scalar string; with a batch dimension for a vector
  // of strings. invalid_argument, naming feature and example, if an example does not fit the spec.
  Nest parse(const StringTensor& serialized) const;
  // The tensors alone, sorted by feature name.
  Fields parse_fields(const StringTensor& serialized) const;

  const FeatureSpecs& features() const;
  // The spec of parse()'s result for a scalar string.
  ElementSpec element_spec() const;

 private:
  class Plan;
  std::unique_ptr<const Plan> plan_;
};

}  // namespace cohort
