// SPDX-License-Identifier: Apache-2.0
// tf.train.Example and SequenceExample: named lists of numbers or byte strings, as stored in record
// files.
//
//   Example example{{{"label", Int64List{7}}, {"image", BytesList{png}}}};
//   writer.write(example.serialize());
//
// To parse whole batches into tensors, see example_parser.h.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "cohort/core/export.h"

namespace cohort {

using BytesList = std::vector<std::string>;
using FloatList = std::vector<float>;
using Int64List = std::vector<std::int64_t>;
// monostate: a feature without a list.
using Feature = std::variant<std::monostate, BytesList, FloatList, Int64List>;
using Features = std::map<std::string, Feature>;

// A value type.
struct COHORT_API Example {
  Features features;

  // The bytes of the protocol buffer, sorted by key.
  std::string serialize() const;
  // invalid_argument, naming the offset of the bad byte, for malformed bytes.
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

}  // namespace cohort
