// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>

namespace cohort::conformance {

using Json = nlohmann::json;

// The case is invalid: an unknown op, function, kind, … It fails the case, whatever the case
// expects. It is not an Error, so that it does not count as an expected error.
class CaseFault : public std::runtime_error {
 public:
  explicit CaseFault(const std::string& text) : std::runtime_error(text) {}
};

// The member `key`; throws a CaseFault that names it if it is missing.
const Json& member(const Json& object, const char* key);
// The member `key` as T, or `otherwise` if it is missing or null.
template <class T>
T member_or(const Json& object, const char* key, T otherwise) {
  const auto found = object.find(key);
  return found == object.end() || found->is_null() ? std::move(otherwise) : found->get<T>();
}
// At most `limit` characters of the JSON's compact text.
std::string brief(const Json& json, std::size_t limit = 300);

}  // namespace cohort::conformance
