// SPDX-License-Identifier: Apache-2.0
// Typed access to the deserialized attributes of an op.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "cohort/data/graph/node.h"

namespace cohort::data {

// The range of an integer attribute, and how an error names it: "> 0".
struct AtLeast {
  std::int64_t least = 0;
  std::string_view text = {};
};
inline constexpr AtLeast kPositive{1, "> 0"};

// Throws data_loss, naming op and attribute, for a missing attribute or one of another kind.
// Thread-compatible.
class AttributeReader {
 public:
  AttributeReader(std::string_view op, const Attributes& attributes)
      : op_(op), attributes_(attributes) {}

  bool has(const std::string& name) const { return attributes_.contains(name); }
  std::int64_t integer(const std::string& name);
  bool boolean(const std::string& name) { return value(name, Nest::Kind::boolean).boolean(); }
  const std::string& text(const std::string& name) { return value(name, Nest::Kind::text).text(); }
  std::vector<std::string> texts(const std::string& name);
  const Nest& nest(const std::string& name);
  ElementSpec spec(const std::string& name);

  // Sets a value to the attribute that AttributeWriter wrote.
  void operator()(const char* name, std::int64_t& value, AtLeast = {}) { value = integer(name); }
  void operator()(const char* name, bool& value) { value = boolean(name); }
  void operator()(const char* name, std::string& value) { value = text(name); }
  void operator()(const char* name, std::vector<std::string>& value) { value = texts(name); }
  void operator()(const char* name, std::vector<std::int64_t>& value);
  void operator()(const char* name, ElementSpec& value) { value = spec(name); }
  void operator()(const char* name, Nest& value) { value = nest(name); }
  void operator()(const char* name, at::ScalarType& value);
  void operator()(const char* name, Compression& value) { value = parse_compression(text(name)); }
  void operator()(const char* name, char& value);
  template <class E>
  requires std::is_enum_v<E>
  void operator()(const char* name, E& value) { value = static_cast<E>(integer(name)); }
  template <class T>
  void operator()(const char* name, std::optional<T>& value) {
    if (!nest(name).is_null()) (*this)(name, value.emplace());
  }
  template <class T>
  void optional(const char* name, T& value, const std::type_identity_t<T>&, AtLeast = {}) {
    if (has(name)) (*this)(name, value);
  }

  // data_loss if an attribute was not read: an unknown option must not be ignored.
  void expect_all_read() const;

 private:
  const Nest& value(const std::string& name, Nest::Kind kind);

  std::string_view op_;
  const Attributes& attributes_;
  std::vector<std::string_view> read_;
};

// The argument of an op's factory.
struct SerializedOp {
  std::vector<NodePtr> inputs;
  AttributeReader& attributes;
};

}  // namespace cohort::data
