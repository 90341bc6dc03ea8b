// SPDX-License-Identifier: Apache-2.0
// tf.train.Example and SequenceExample: named lists of numbers or byte strings, as stored in record
// files.
//
//   Example example{{{"label", Int64List{7}}, {"image", BytesList{png}}}};
//   writer.write(example.serialize());
//
// To parse whole batches into tensors, use an ExampleParser.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "cohort/core/export.h"
#include "cohort/core/nest.h"
#include "cohort/core/string_tensor.h"
#include "cohort/data/element.h"

namespace cohort {

using BytesList = std::vector<std::string>;
using FloatList = std::vector<float>;
using Int64List = std::vector<std::int64_t>;
// monostate: a feature that has no list.
using Feature = std::variant<std::monostate, BytesList, FloatList, Int64List>;
using Features = std::map<std::string, Feature>;

// A value type.
struct COHORT_API Example {
  Features features;

  // The bytes of the protocol buffer, sorted by key.
  std::string serialize() const;
  // Throws invalid_argument, naming the offset of the bad byte, if the bytes are malformed.
  static Example parse(std::string_view bytes);
  bool operator==(const Example&) const = default;
};

// A value type.
struct COHORT_API SequenceExample {
  Features context;
  std::map<std::string, std::vector<Feature>> feature_lists;

  std::string serialize() const;
  static SequenceExample parse(std::string_view bytes);
  bool operator==(const SequenceExample&) const = default;
};

// The expected type of a feature. A value type.
struct COHORT_API FeatureSpec {
  at::ScalarType dtype = at::ScalarType::Float;  // float32, int64 or kString
  std::vector<std::int64_t> sizes = {};          // of one example
  // A number, a string, or a tensor with as many values as `sizes` has. nullopt: the feature is
  // required.
  std::optional<Nest> default_value = {};
  // If true, the feature is a vector of any length, and a missing feature has length 0. In a batch,
  // vectors are padded with 0 or "" to the longest. `sizes` and `default_value` are ignored.
  bool is_variable_length = false;
};
using FeatureSpecs = std::map<std::string, FeatureSpec>;

// Parses serialized tf.train.Examples into tensors (tf.io.parse_example).
//
//   const ExampleParser parser({{"image", {.dtype = at::kFloat, .sizes = {28, 28}}},
//                               {"label", {.dtype = at::kLong}}});
//   Nest one = parser.parse(records);  // {image: float32[n, 28, 28], label: int64[n]}
//
// In a pipeline: Dataset::parse_example(), before or, faster, after batch().
//
// Immutable. Thread-safe.
class COHORT_API ExampleParser {
 public:
  // Throws invalid_argument, naming the feature, if a spec is invalid.
  explicit ExampleParser(FeatureSpecs features);
  ~ExampleParser();

  // Returns a map of the features: those of one example for a scalar string, or with a batch
  // dimension for a vector of strings. Throws invalid_argument, naming the feature and the example,
  // if an example does not fit the spec.
  Nest parse(const StringTensor& serialized) const;
  // The same, as a list of tensors sorted by the features' names.
  Fields parse_fields(const StringTensor& serialized) const;

  const FeatureSpecs& features() const;
  // The spec of parse()'s result for a scalar string.
  ElementSpec element_spec() const;

 private:
  class Plan;
  std::unique_ptr<const Plan> plan_;
};

}  // namespace cohort
