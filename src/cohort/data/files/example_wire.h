// SPDX-License-Identifier: Apache-2.0
// Parses serialized tf.train.Example messages in place, without building message objects.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "cohort/data/example.h"

namespace cohort::data {

// The kind of a feature's list, which is its field number; none: the feature has no list.
enum class FeatureKind : std::uint8_t { none = 0, bytes = 1, floats = 2, int64s = 3 };
std::string_view name_of(FeatureKind kind);

// The first list of a feature, as a view into the message. Like tf.io.parse_example(), this ignores
// further lists, whereas protocol buffers would concatenate lists or use the last one.
struct FeatureView {
  FeatureKind kind = FeatureKind::none;
  std::string_view list;
};

// Appends the values of one list; invalid_argument for malformed bytes.
void append_values(std::string_view list, std::vector<std::string_view>& values);
void append_values(std::string_view list, std::vector<float>& values);
void append_values(std::string_view list, std::vector<std::int64_t>& values);

// Calls visit(key, feature) for each entry of an Example, in the order of the bytes. If two entries
// have the same key, the last one is valid. The values in the lists are not checked.
using FeatureVisitor = std::function<void(std::string_view key, const FeatureView& feature)>;
void visit_example(std::string_view message, const FeatureVisitor& visit);

}  // namespace cohort::data
