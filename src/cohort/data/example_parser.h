// SPDX-License-Identifier: Apache-2.0
// Serialized tf.train.Examples as tensors (tf.io.parse_example).
//
//   const ExampleParser parser({{"image", {.dtype = at::kFloat, .sizes = {28, 28}}},
//                               {"label", {.dtype = at::kLong}}});
//   Nest one = parser.parse(records);  // {image: float32[n, 28, 28], label: int64[n]}
//
// In a pipeline: Dataset::parse_example(), before or, faster, behind batch().
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

// What is expected of a feature. A value type.
struct COHORT_API FeatureSpec {
  at::ScalarType dtype = at::ScalarType::Float;  // float32, int64 or kString
  std::vector<std::int64_t> sizes = {};          // of the values of one example
  // A number, a text, or a tensor of as many values as the sizes have; none: the feature is
  // required.
  std::optional<Nest> default_value = {};
  // Any number of values, as a vector: missing features have none. In a batch each is filled up
  // with 0 or "" to the longest. `sizes` and `default_value` do not count then.
  bool is_variable = false;
};
using FeatureSpecs = std::map<std::string, FeatureSpec>;

// Immutable. Thread-safe.
class COHORT_API ExampleParser {
 public:
  // invalid_argument naming the feature for a spec that cannot be met.
  explicit ExampleParser(FeatureSpecs features);
  ~ExampleParser();

  // A map of the features: of one example for a scalar, with a first dimension for a vector of
  // them. invalid_argument, naming feature and example, where they do not fit.
  Nest parse(const StringTensor& serialized) const;
  // The tensors alone, by the order of their names.
  Fields parse_fields(const StringTensor& serialized) const;

  const FeatureSpecs& features() const;
  // Of what parse() returns for a scalar.
  ElementSpec element_spec() const;

 private:
  class Plan;
  std::unique_ptr<const Plan> plan_;
};

}  // namespace cohort
