// SPDX-License-Identifier: Apache-2.0
// The messages of tf.train.Example on the wire, without building them.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "cohort/data/example.h"

namespace cohort::data {

// The kind of a feature's list: its field number; none: no list at all.
enum class FeatureKind : std::uint8_t { none = 0, bytes = 1, floats = 2, int64s = 3 };
std::string_view name_of(FeatureKind kind);

// One feature as bytes, views into the message: its first list. tf.io.parse_example() looks no
// further either, where protocol buffers would join lists or take the last one.
struct FeatureView {
  FeatureKind kind = FeatureKind::none;
  std::string_view list;
};

// Appends the values of one list; invalid_argument for bytes that are none.
void append_values(std::string_view list, std::vector<std::string_view>& values);
void append_values(std::string_view list, std::vector<float>& values);
void append_values(std::string_view list, std::vector<std::int64_t>& values);

// Calls visit(key, view of the feature) for each entry of an Example, in the order of the bytes: of
// two entries with one key, the last counts. The values in the lists are not looked at.
using FeatureVisitor = std::function<void(std::string_view key, const FeatureView& feature)>;
void visit_example(std::string_view message, const FeatureVisitor& visit);

}  // namespace cohort::data
