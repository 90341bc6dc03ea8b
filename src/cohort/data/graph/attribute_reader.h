// SPDX-License-Identifier: Apache-2.0
// Typed access to the deserialized attributes of an op.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "cohort/data/graph/node.h"

namespace cohort::data {

// Throws data_loss, naming op and attribute, for a missing attribute or one of another kind.
// Thread-compatible.
class AttributeReader {
 public:
  AttributeReader(std::string_view op, const Attributes& attributes)
      : op_(op), attributes_(attributes) {}

  bool has(const std::string& name) const { return attributes_.contains(name); }
  std::int64_t integer(const std::string& name);
  bool boolean(const std::string& name);
  const std::string& text(const std::string& name);
  std::vector<std::string> texts(const std::string& name);
  const Nest& nest(const std::string& name);
  ElementSpec spec(const std::string& name);
  // data_loss if an attribute was not read: an unknown option must not be ignored.
  void expect_all_read() const;

 private:
  const Nest& value(const std::string& name, Nest::Kind kind);

  std::string_view op_;
  const Attributes& attributes_;
  std::vector<std::string_view> read_;
};

}  // namespace cohort::data
